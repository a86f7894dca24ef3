"""A notebook in the real kernel on real GPUs: cells, training that is tracked, Stop, SIGKILL."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("jupyter_client", reason="no jupyter_client here")
pytest.importorskip("serverless_gpu._kernel", reason="built without the kernel")

from serverless_gpu import accelerator
from tests.support import kernel_client
from tests.support.gpus import GPUS, Measured, await_memory, memory_used, needs_gpu, several
from tests.support.kernel_client import TestKernel
from tests.support.notebook import Notebook, plain

pytestmark = needs_gpu

SESSION = f"""
%%distributed --gpus {GPUS}
import os, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
x = torch.full((4,), rank + 1.0, device="cuda")
y = x.clone(); dist.all_reduce(y); y[0].item()
"""
MODEL = """
import torch.nn as nn
def setup():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1))
    def forward(self, x):
        return self.layers(x)
"""
TRAINING = """
@distributed(gpus=GPUS, gpu_type=TYPE)
def train(epochs: int, batch_size: int) -> None:
    import mlflow
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    setup()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}")
    model = DistributedDataParallel(Net().to(device), device_ids=[device])
    data = TensorDataset(torch.randn(2000, 10), torch.randn(2000, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, sampler=sampler, batch_size=batch_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
            mlflow.log_metric("loss", loss.item(), step=step)
            loss.backward()
            optimizer.step()
        print("epoch", epoch, "is done")
    dist.destroy_process_group()
train.distributed(epochs=3, batch_size=8)
"""
LOGGED = """
import mlflow
client = mlflow.MlflowClient()
experiments = [e.experiment_id for e in client.search_experiments()]
runs = [r for r in client.search_runs(experiments) if "loss" in r.data.metrics]
print(len(runs), runs[0].info.status, len(client.get_metric_history(runs[0].info.run_id, "loss")))
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestKernel]:
    folder: Path = tmp_path_factory.mktemp("notebook")
    environment = {"SERVERLESS_GPU_MLFLOW": "always", "SERVERLESS_GPU_WARM": "1"}
    with kernel_client.running(environment, cwd=folder) as one:
        yield one


@pytest.fixture(scope="module")
def notebook(kernel: TestKernel) -> Notebook:
    return Notebook(kernel)


def test_a_cell_on_all_gpus_shows_what_ranks_agree_on_and_its_run(
    notebook: Notebook, measured: Measured
) -> None:
    started = time.perf_counter()
    run = notebook.run(SESSION)
    measured("first cell of a new kernel on GPUs", time.perf_counter() - started, "s")
    shown = "".join(
        plain(each["data"].get("text/plain", ""))
        for kind in ("display_data", "update_display_data", "execute_result")
        for each in run.of_type(kind)
    )
    assert run.status == "ok", notebook.shown(run)
    total = GPUS * (GPUS + 1) / 2
    assert str(total) in shown + plain(run.out)
    assert "MLflow run" in shown and f"{GPUS} rank" in shown


def test_training_as_users_write_it_lands_in_one_run(
    notebook: Notebook, measured: Measured
) -> None:
    notebook.ok(MODEL)
    kind = accelerator.detect().devices[0].type
    started = time.perf_counter()
    shown = notebook.ok(TRAINING.replace("GPUS", str(GPUS)).replace("TYPE", repr(kind)))
    measured("tracked DDP training in the kernel", time.perf_counter() - started, "s")
    assert shown.count("epoch 2 is done") == 1
    steps = 3 * -(-2000 // GPUS // 8)
    assert notebook.ok(LOGGED).split() == ["1", "FINISHED", str(GPUS * steps)]


@several
def test_stop_in_a_notebook_frees_nccl_and_the_session_goes_on(notebook: Notebook) -> None:
    notebook.ok(SESSION.replace(f" --gpus {GPUS}", ""))
    run = notebook.stop(
        """
        %%distributed
        print("waiting", flush=True)
        if rank == 0:
            dist.all_reduce(y); torch.cuda.synchronize()
        else:
            time.sleep(600)
        """,
        at="waiting",
    )
    assert run.content["ename"] == "KeyboardInterrupt"
    total = GPUS * (GPUS + 1) / 2
    again = "%%distributed\ny = x.clone(); dist.all_reduce(y); print(y[0].item())"
    assert f"{total}" in notebook.ok(again)


def test_a_killed_kernel_leaves_no_rank_and_no_memory(
    kernel: TestKernel, notebook: Notebook, measured: Measured
) -> None:
    notebook.ok("import serverless_gpu as s; s.session().stop(); s.pool.stop()")
    before = memory_used()
    notebook.ok(SESSION)
    notebook.ok(
        "%%distributed\nheld = torch.ones(1 << 28, device='cuda'); torch.cuda.synchronize()"
    )
    pids = notebook.ok("print(*s.session().pids())").split()
    handles = [os.pidfd_open(int(pid)) for pid in pids]
    assert len(handles) == GPUS
    os.kill(kernel.pid, 9)
    started = time.perf_counter()
    for handle in handles:
        assert select.select([handle], [], [], 20)[0], f"one of {pids} is left"
        os.close(handle)
    measured("kernel SIGKILLed: ranks gone", time.perf_counter() - started, "s")
    await_memory(before)
    measured("kernel SIGKILLed: memory back", time.perf_counter() - started, "s")
