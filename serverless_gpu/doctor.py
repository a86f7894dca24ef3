"""`serverless-gpu doctor`: is this machine fit for ranks, and what is to be done?

What the system and the driver tell is read and judged in C++ (runtime/doctor.h); what only Python
knows is gathered here.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from . import _core, accelerator

#: Seconds for the all-reduce, process start included; and for a look at an MLflow server.
ALL_REDUCE_LIMIT_S = 180.0
SERVER_LIMIT_S = 5.0
#: What is reduced: on GPUs so much that the links and not the start decide.
GPU_BYTES = 512 << 20
CPU_BYTES = 8 << 20
#: How often: first until connections and clocks are up, then in a row between two looks at the
#: clock, as training does it and nccl-tests measures it. One by itself would be mostly its start.
WARM_UP, TIMES = 5, 20


@dataclass(frozen=True)
class Check:
    """One line of the doctor. `level`: ok, warning or error."""

    level: str
    name: str
    text: str
    advice: str


#: How something is, what keeps it from working ("" if nothing), and what to do.
Part = tuple[str, str, str]


def examine(all_reduce: bool = True) -> list[Check]:
    """Every check, in the order in which to read them. Runs an all-reduce on ranks unless told not
    to, which takes seconds and the GPUs."""
    accelerator._ask_driver.cache_clear()  # what was true at the notebook's start may not be now
    machine = accelerator.machine()
    here, problem = _here()
    done = _all_reduce(here) if all_reduce and here is not None and not problem else None
    found = _core.diagnose(
        _software(),
        done,
        here.default_ranks if here is not None else accelerator.DEFAULT_CPU_RANKS,
        machine.problem,
        machine.driver,
        [device.index for device in here.devices] if here is not None else [],
        {os.getpid(), *(pid for pid, _, _ in _core.descendants(os.getpid()))},
    )
    checks = [Check(*one) for one in found]
    if problem and not machine.problem:
        checks.insert(0, Check("error", "accelerator", problem, ""))
    return checks


def _here() -> tuple[accelerator.Accelerator | None, str]:
    try:
        return accelerator.detect(), ""
    except (accelerator.GpuError, ValueError) as error:
        return None, str(error)


def report(checks: list[Check]) -> str:
    """The lines for people."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.level:<8} {check.name:<{width}}  {check.text}")
        if check.advice:
            lines.append(f"{'':<8} {'':<{width}}  -> {check.advice}")
    return "\n".join(lines)


def as_json(checks: list[Check]) -> str:
    return json.dumps({"ok": healthy(checks), "checks": [asdict(c) for c in checks]}, indent=1)


def healthy(checks: list[Check]) -> bool:
    """Whether there is no error."""
    return not any(check.level == "error" for check in checks)


# --- The all-reduce -------------------------------------------------------------------------------


def _all_reduce(here: accelerator.Accelerator) -> dict[str, Any]:
    """What runtime/doctor.h calls AllReduceFacts."""
    from .decorator import distributed

    size = GPU_BYTES if here.is_gpu else CPU_BYTES
    facts = {
        "error": "",
        "ranks": here.default_ranks,
        "backend": "nccl" if here.is_gpu else "gloo",
        "nccl": "",
        "bytes": size,
        "seconds": 0.0,
    }
    run = distributed(mlflow="off", timeout=ALL_REDUCE_LIMIT_S, name="doctor")(_reduce_in_ranks)
    try:
        seconds, facts["nccl"] = max(run.distributed(size, here.is_gpu))
        facts["seconds"] = max(seconds, 1e-9)
    except Exception as error:  # whatever ranks raise is the finding
        facts["error"] = str(error).splitlines()[0] if str(error) else repr(error)
    return facts


def _reduce_in_ranks(nbytes: int, gpu: bool) -> tuple[float, str]:
    """In a rank: seconds of one all-reduce of many, and NCCL's version. Raises if the sum is
    wrong."""
    import torch
    import torch.distributed as dist

    from . import runtime

    device = torch.device("cpu")
    version = ""
    if gpu:
        if not torch.cuda.is_available():
            raise RuntimeError(f"torch {torch.__version__} does not see the GPUs in ranks")
        device = torch.device("cuda", runtime.get_local_rank())
        torch.cuda.set_device(device)
        version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    dist.init_process_group("nccl" if gpu else "gloo")
    x = torch.ones(nbytes // 4, device=device)
    dist.all_reduce(x)
    wrong = int((x != float(dist.get_world_size())).sum().item())
    if wrong:
        raise RuntimeError(f"an all-reduce gave {wrong} wrong sums of {x.numel()}")

    def settle() -> None:
        dist.barrier(device_ids=[device.index] if gpu else None)
        if gpu:
            torch.cuda.synchronize()

    x.zero_()  # or the sums of sums would leave the range of floats
    return _seconds_each(lambda: dist.all_reduce(x), settle), version


def _seconds_each(act: Callable[[], object], settle: Callable[[], object]) -> float:
    """Of TIMES acts in a row. `settle` waits until all that was begun is done, on every rank."""
    for _ in range(WARM_UP):
        act()
    settle()
    start = time.perf_counter()
    for _ in range(TIMES):
        act()
    settle()
    return (time.perf_counter() - start) / TIMES


# --- Software -------------------------------------------------------------------------------------


def _software() -> dict[str, Any]:
    torch, cuda = _torch()
    return {
        "python": f"{platform.python_version()} ({sys.executable})",
        "torch": torch,
        "torch_cuda": cuda,
        "kernelspec": _look(_kernelspec),
        "jupyter": _look(_jupyter),
        "mlflow": _look(_mlflow),
    }


def _look(what: Callable[[], Part]) -> Part:
    try:
        return what()
    except Exception as error:  # a check that fails is a finding, not the end of the others
        return "", f"it could not be looked at: {error!r}", ""


def _torch() -> tuple[str, str]:
    """Version and CUDA's version, by torch's own small file: importing torch takes a second."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "", ""
    names: dict[str, Any] = {}
    exec((Path(spec.origin).parent / "version.py").read_text(), names)
    return str(names.get("__version__", "?")), str(names.get("cuda") or "")


def _kernelspec() -> Part:
    advice = "run `serverless-gpu install --user`"
    if util.find_spec("jupyter_client") is None:
        return "", "jupyter_client is not installed: no notebook can start the kernel", advice
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    from .cli import KERNEL_NAME

    try:
        spec = KernelSpecManager().get_kernel_spec(KERNEL_NAME)
    except NoSuchKernel:
        return "", "Jupyter of this environment does not find the kernel", advice
    program = spec.argv[0]
    if os.path.isabs(program) and not os.access(program, os.X_OK):
        return "", f"it starts {program}, which is not there", advice
    return str(spec.resource_dir), "", ""


def _jupyter() -> Part:
    found = []
    for name in ("jupyterlab", "notebook", "nbconvert", "ipykernel"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    if any(name.startswith(("jupyterlab", "notebook")) for name in found):
        return ", ".join(found), "", ""
    return (
        "",
        f"no front end in this environment ({', '.join(found) or 'nothing of Jupyter'})",
        "pip install jupyterlab; or `serverless-gpu install --user` for one that lives elsewhere",
    )


def _mlflow() -> Part:
    from .tracking.context import capture_context
    from .tracking.settings import mode
    from .tracking.url import without_credentials

    if mode(None, os.environ) == "off":
        return "off (SERVERLESS_GPU_MLFLOW)", "", ""
    if util.find_spec("mlflow") is None:
        return "", "it is not installed", "pip install mlflow-skinny, or SERVERLESS_GPU_MLFLOW=off"
    context = capture_context(None)
    uri = context.tracking_uri or context.cwd
    shown = without_credentials(uri)
    if uri.startswith(("http://", "https://")):
        return _server(uri, shown)
    for prefix in ("sqlite:///", "file://"):
        if uri.startswith(prefix):
            return _writable(Path(uri.removeprefix(prefix)), shown)
    if ":" in uri or uri == "databricks":
        return f"{shown} (not looked at)", "", ""
    return _writable(Path(uri), f"MLflow's default in {shown}" if uri == context.cwd else shown)


def _server(uri: str, shown: str) -> Part:
    try:
        with urllib.request.urlopen(uri.rstrip("/") + "/health", timeout=SERVER_LIMIT_S):
            return shown, "", ""
    except urllib.error.HTTPError as error:  # it answers, if only to say that we are not let in
        return f"{shown} (answers {error.code})", "", ""
    except OSError as error:
        why = getattr(error, "reason", error)
        return "", f"{shown} does not answer: {why}", "start the server, or mend the address"


def _writable(path: Path, shown: str) -> Part:
    existing = next(p for p in (path, *path.parents) if p.exists())
    if os.access(existing, os.W_OK):
        return shown, "", ""
    return "", f"{shown} cannot be written ({existing})", "set MLFLOW_TRACKING_URI to another store"
