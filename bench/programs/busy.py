"""A cell for our kernel: ranks that compute for ever, each with a DataLoader worker and a daemon
in a session of its own."""

from serverless_gpu import distributed


@distributed(gpus=8)
def busy() -> None:
    import os
    import subprocess

    import torch
    from torch.utils.data import DataLoader

    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            while True:
                yield torch.ones(1000)

    # Through a shell that ends at once: nobody's child, and in another session.
    subprocess.run(["sh", "-c", "setsid sleep 1000 </dev/null >/dev/null 2>&1 &"], check=True)
    batches = iter(DataLoader(Endless(), batch_size=8, num_workers=1))
    next(batches)
    print(f"rank is busy: {os.environ['RANK']}", flush=True)
    for batch in batches:
        batch.sum()


busy.distributed()
