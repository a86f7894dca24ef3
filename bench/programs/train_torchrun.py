"""For torchrun: train_loop.py. Arguments: steps, MLflow store or "" to log nothing."""

import json
import sys

import torch.distributed as dist
from train_loop import train

steps, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
rank = dist.get_rank()
if store:
    import mlflow

    mlflow.set_tracking_uri(store)
    run = [mlflow.MlflowClient().create_run("0").info.run_id if rank == 0 else None]
    dist.broadcast_object_list(run)
    mlflow.start_run(run_id=run[0])


def log_metric(loss: float, step: int) -> None:
    if store:
        mlflow.log_metric(f"loss/rank{rank}", loss, step=step)


seconds = [None] * dist.get_world_size()
dist.all_gather_object(seconds, train(steps, log_metric))
if rank == 0:
    print(f"steps {json.dumps(seconds)}", flush=True)
dist.barrier()
dist.destroy_process_group()
