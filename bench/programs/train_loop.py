"""The loop of examples/02_train_mlp.ipynb, timed: a cell for our kernel, a module for torchrun."""


def train(steps: int, log) -> float:
    """Seconds per step, the first few left out. `log(loss, step)` is called in each."""
    import time

    import torch
    import torch.distributed as dist
    import torch.nn as nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(2048, 10)
    y = x.sum(dim=1, keepdim=True) + 0.1 * torch.randn(2048, 1)
    layers = nn.Sequential(
        nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )
    model = DistributedDataParallel(layers)
    dataset = TensorDataset(x, y)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, sampler=sampler, batch_size=32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss_fn = nn.MSELoss()

    warm_up = 5
    step, epoch, began = -warm_up, 0, 0.0
    while step < steps:
        sampler.set_epoch(epoch)
        for xb, yb in loader:
            if step == 0:
                dist.barrier()
                began = time.perf_counter()
            optimizer.zero_grad()
            loss = loss_fn(model(xb), yb)
            loss.backward()
            optimizer.step()
            log(loss.item(), step + warm_up)
            step += 1
            if step == steps:
                break
        epoch += 1
    return (time.perf_counter() - began) / steps
