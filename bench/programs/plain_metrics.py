"""For torchrun: 8 processes that log into one run with MLflow alone. Arguments: store, count, and
"waiting" or "async" for MLflow's own queue in each process."""

import json
import sys
import time

import mlflow
import torch.distributed as dist

store, count, synchronous = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "waiting"
dist.init_process_group("gloo")
rank = dist.get_rank()
mlflow.set_tracking_uri(store)
run = [None]
if rank == 0:
    run = [mlflow.MlflowClient().create_run("0").info.run_id]
dist.broadcast_object_list(run)
key = f"bench{rank}"
client = mlflow.MlflowClient()
client.log_metric(run[0], "first", 0.0)
dist.barrier()
seconds = []
for step in range(count):
    began = time.perf_counter()
    client.log_metric(run[0], key, float(step), step=step, synchronous=synchronous)
    seconds.append(time.perf_counter() - began)
if not synchronous:
    mlflow.flush_async_logging()
dist.barrier()
if rank == 0:
    client.set_terminated(run[0])
sys.stdout.write(f"seconds {json.dumps(seconds)}\n")
sys.stdout.flush()
dist.barrier()
dist.destroy_process_group()
