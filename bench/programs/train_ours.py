"""A cell for our kernel, after train_loop.py."""

from serverless_gpu import distributed


@distributed(gpus=8)
def of_ranks(steps: int, log: bool) -> float:
    import mlflow
    import torch.distributed as dist

    def log_metric(loss: float, step: int) -> None:
        if log:
            mlflow.log_metric(f"loss/rank{dist.get_rank()}", loss, step=step)

    return train(steps, log_metric)  # noqa: F821
