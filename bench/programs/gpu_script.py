"""A plain script: a first all-reduce by our ranks, from nothing."""

import json
import os

os.environ.update(SERVERLESS_GPU_MLFLOW="off", SERVERLESS_GPU_IDLE_S="0")

from pathlib import Path

from serverless_gpu import _core, distributed, pool

# As in a notebook, whose functions are in no module.
exec(Path(__file__).with_name("gpu_start.py").read_text())


@distributed
def first():
    times = start()  # noqa: F821
    print("first all-reduce done", flush=True)
    return times


found = first.distributed()
print(f"found {json.dumps([{'start': times} for times in found])}", flush=True)
print(f"imports {pool.get().import_seconds(_core.Imports.torch)}", flush=True)
