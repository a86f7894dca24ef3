"""A cell for our kernel: ranks that log as fast as they can, or between some work."""

from serverless_gpu import distributed


@distributed(gpus=8)
def metrics(count: int, work: int = 0) -> list[float]:
    """Seconds of each `log_metric`; before each a product of matrices of `work` x `work`."""
    import os
    import time

    import mlflow
    import torch

    key = f"bench{os.environ['RANK']}"
    matrix = torch.ones(work, work)
    seconds = []
    for step in range(count):
        if work:
            matrix @ matrix
        began = time.perf_counter()
        mlflow.log_metric(key, float(step), step=step)
        seconds.append(time.perf_counter() - began)
    return seconds
