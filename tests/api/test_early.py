"""Calls that begin before everything is imported that ranks may need."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.optim

from serverless_gpu import serialize
from serverless_gpu._core import Imports
from serverless_gpu.early import imports_needed
from tests.support import scripts


def _by_value(source: str, **names: Any) -> Callable[..., Any]:
    """The function `f` of this source, which travels by value as those of notebooks do."""
    scope: dict[str, Any] = {"__name__": "__main__", **names}
    exec(source, scope)
    function: Callable[..., Any] = scope["f"]
    return function


@contextmanager
def _request(function: Callable[..., Any], *args: Any) -> Iterator[serialize.Payload]:
    with serialize.dump((function, args, {}), what="f") as payload:
        yield payload


@pytest.mark.parametrize(
    "source",
    [
        "def f(): return 1",
        "def f():\n import os, time\n return os.environ['RANK'], time.time()",
        "def f():\n 'Trains a model.'\n import torch\n return torch.nn.Linear(2, 2)",
        "def f():\n import torch.distributed as dist\n dist.init_process_group('gloo')",
        "def f():\n dist.all_reduce(torch.ones(1))",
        "def f():\n from torch.utils.data import DataLoader\n return len(DataLoader([1]))",
        "def f(loss=0): print(f'mean loss: {loss}')",
        "def f():\n pytest = optim = 'mlflow'\n return pytest, optim",  # only names of its own
        "class Net(torch.nn.Module):\n def forward(self, x): return x\ndef f(): return Net()",
    ],
)
def test_what_needs_only_torch_begins_early(source: str) -> None:
    with _request(_by_value(source, torch=torch, dist=dist)) as payload:
        assert imports_needed(payload) == Imports.torch


@pytest.mark.parametrize(
    "source",
    [
        "def f(): return torch.optim.SGD([torch.ones(1)])",
        "def f():\n from torch.optim import AdamW\n return AdamW",
        "def f(): return optim.SGD",
        "def f(): return torch.compile(torch.sin)",
        "def f():\n from torch.nn.parallel import DistributedDataParallel as D\n return D",
        "def f():\n from torch.distributed.fsdp import fully_shard\n return fully_shard",
        "def f():\n import torch.distributed.checkpoint as c\n return c",
        "def f():\n import pytest\n return pytest",  # somebody's package: who knows what it needs
        "def f(): return psutil.Process()",
        "def f():\n import importlib\n return importlib.import_module('torch.optim')",
        "class Net(torch.nn.Module):\n def fit(self): return optim.SGD\ndef f(): return Net()",
    ],
)
def test_what_needs_more_or_may_waits(source: str) -> None:
    import psutil

    names = {"torch": torch, "dist": dist, "optim": torch.optim, "psutil": psutil}
    with _request(_by_value(source, **names)) as payload:
        assert imports_needed(payload) == Imports.all


def test_what_logs_waits_for_mlflow_only() -> None:
    for source in ("def f(): mlflow.log_metric('a', 1)", "def f(): import mlflow.pytorch"):
        with _request(_by_value(source, mlflow=mlflow)) as payload:
            assert imports_needed(payload) == Imports.tracking


def test_arguments_count_too() -> None:
    plain = _by_value("def f(x): return x")
    for light in (1, "text", os.fspath, Path, [np.ones(3)], torch.ones(3), torch.nn.Linear(2, 2)):
        with _request(plain, light) as payload:
            assert imports_needed(payload) == Imports.torch, light
    weights = [torch.nn.Parameter(torch.ones(1))]
    for heavy in (torch.optim.SGD(weights, lr=0.1), torch.optim.SGD, pytest.Item):
        with _request(plain, heavy) as payload:
            assert imports_needed(payload) == Imports.all, heavy


def test_a_request_too_long_to_look_through_waits() -> None:
    with _request(_by_value("def f(x): return x"), [str(n) for n in range(20_000)]) as payload:
        assert imports_needed(payload) == Imports.all


#: In place of sympy, one of the later imports: in the fork server it waits for a byte.
_HELD = """
import os, sys
if "SERVERLESS_GPU_RANK" not in os.environ:
    os.read(os.open(os.environ["GATE"], os.O_RDONLY), 1)
sys.path.remove(os.path.dirname(__file__))
del sys.modules["sympy"]
import sympy
"""


def test_a_first_call_that_needs_only_torch_does_not_wait_for_other_imports(
    tmp_path: Path,
) -> None:
    held, gate = tmp_path / "held", tmp_path / "gate"
    held.mkdir()
    (held / "sympy.py").write_text(_HELD)
    os.mkfifo(gate)
    opened = os.open(gate, os.O_RDWR | os.O_NONBLOCK)
    path = os.pathsep.join([str(held), str(scripts.PACKAGE_ROOT)])
    code = """
        from serverless_gpu import _core, distributed, pool

        @distributed(gpus=2)
        def light():
            import sys, torch, torch.distributed as dist
            dist.init_process_group("gloo")
            total = torch.ones(1)
            dist.all_reduce(total)
            return total.item(), "_".join(["torch.", "dynamo"]) in sys.modules

        @distributed(gpus=2)
        def heavy():
            import sys, torch
            return torch.optim.SGD.__name__, "_".join(["torch.", "dynamo"]) in sys.modules

        print("light", light.distributed())
        owner = pool.get()
        print("ready", owner.fork_server_up(), owner.import_seconds(_core.Imports.torch) > 0)
        print("heavy", heavy.distributed())
        print("ready", owner.fork_server_up(), owner.import_seconds() > 0)
        print("light", light.distributed())
    """
    quiet = {"SERVERLESS_GPU_ACCELERATOR": "cpu", "SERVERLESS_GPU_MLFLOW": "off"}
    try:
        with scripts.running(code, tmp_path, PYTHONPATH=path, GATE=str(gate), **quiet) as script:
            assert script.wait_for("light") == "light [(2.0, False), (2.0, False)]"
            assert script.wait_for("ready") == "ready False True"
            os.write(opened, b"!")
            assert script.wait_for("heavy") == "heavy [('SGD', True), ('SGD', True)]"
            assert script.wait_for("ready") == "ready True True"
            assert script.wait_for("light") == "light [(2.0, True), (2.0, True)]"
            script.finish()
    finally:
        os.close(opened)


def test_a_rank_of_an_early_call_has_the_rest_when_it_needs_it(tmp_path: Path) -> None:
    code = """
        from serverless_gpu import distributed

        @distributed(gpus=2)
        def misjudged(first, second):
            import sys, torch
            early = not {"torch._" + first[2], "ml" + second} & set(sys.modules)
            load = getattr(sys.modules["importlib"], "".join(["import", "_module"]))
            optimizer = load("torch." + "".join(first[:2]))
            tracked = load("ml" + second)
            weight = torch.nn.Parameter(torch.ones(1))
            weight.grad = torch.ones(1)
            optimizer.SGD([weight], lr=0.5).step()
            tracked.log_metric("weight", weight.item())
            return early, weight.item()

        print("found", misjudged.distributed(["op", "tim", "dynamo"], "flow"))
        import mlflow
        runs = mlflow.search_runs(search_all_experiments=True)
        print("stored", runs["metrics.weight"].tolist(), runs["status"].tolist())
    """
    store = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/store.db",
        "SERVERLESS_GPU_MLFLOW": "always",
    }
    script = scripts.run(code, tmp_path, SERVERLESS_GPU_ACCELERATOR="cpu", **store)
    assert "found [(True, 0.5), (True, 0.5)]" in script.lines, script.text
    assert "stored [0.5] ['FINISHED']" in script.lines, script.text


def test_the_run_of_a_first_call_that_ends_before_there_is_a_tracker_is_recorded(
    tmp_path: Path,
) -> None:
    code = """
        from serverless_gpu import distributed
        print("found", distributed(gpus=2)(lambda: 1).distributed())
    """
    store = f"sqlite:///{tmp_path}/store.db"
    env = {"MLFLOW_TRACKING_URI": store, "SERVERLESS_GPU_MLFLOW": "always"}
    script = scripts.run(code, tmp_path, SERVERLESS_GPU_ACCELERATOR="cpu", **env)
    assert script.lines == ["found [1, 1]"]
    client = mlflow.MlflowClient(store)
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert [run.info.status for run in runs] == ["FINISHED"]
