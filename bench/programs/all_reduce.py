"""A cell for our kernel: the first thing that all ranks do together."""

from serverless_gpu import distributed


@distributed(gpus=8)
def all_reduce() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    number = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(number)
    print(f"sum {number.item()}", flush=True)


all_reduce.distributed()
