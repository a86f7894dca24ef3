"""A plain script: a first all-reduce by our ranks, from nothing."""

import json
import os

os.environ.update(SERVERLESS_GPU_MLFLOW="off", SERVERLESS_GPU_IDLE_S="0")

from gpu_work import start

from serverless_gpu import distributed, pool


@distributed
def first():
    times = start()
    print("first all-reduce done", flush=True)
    return times


found = first.distributed()
print(f"found {json.dumps([{'start': times} for times in found])}", flush=True)
print(f"imports {pool.get().import_seconds()}", flush=True)
