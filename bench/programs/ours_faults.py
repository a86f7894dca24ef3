"""A cell for our kernel: calls on 8 ranks that go wrong, and how long that takes to the prompt."""

import ctypes
import os
import signal
import tempfile
import threading
import time

from serverless_gpu import DistributedTimeoutError, RankError, distributed

RANKS, FIRST = 8, 3
_WAIT_S = 60.0


def _go_wrong(fault: str, folder: str) -> None:
    """Says that the rank is there, then does what the fault wants."""
    rank = int(os.environ["RANK"])
    place = fault.removeprefix("stop in ")
    if place in ("raise", "SIGKILL", "os._exit", "collective"):
        import torch.distributed as dist

        dist.init_process_group("gloo")
    if fault in ("raise", "SIGKILL", "os._exit") and rank == FIRST:
        time.sleep(0.3)  # the others are in the barrier
        with open(os.path.join(folder, "fault"), "w") as file:
            file.write(str(time.monotonic()))
        if fault == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "os._exit":
            os._exit(1)
        raise ValueError("the fault")
    open(os.path.join(folder, f"ready-{rank}"), "w").close()
    if place == "sleep" or fault == "deadline":
        time.sleep(600)
    elif place == "native code with the GIL":
        # Locked twice: no signal ends that, and nobody else gets the GIL.
        mutex = ctypes.create_string_buffer(64)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    else:
        if rank == FIRST and place == "collective":
            time.sleep(600)
        dist.barrier()


def _press_stop(folder: str) -> None:
    """SIGINT to the notebook once all ranks are where they should be."""
    limit = time.monotonic() + _WAIT_S
    while sum(name.startswith("ready") for name in os.listdir(folder)) < RANKS:
        if time.monotonic() > limit:
            raise TimeoutError("ranks did not get ready")
        time.sleep(0.01)
    time.sleep(0.2)
    with open(os.path.join(folder, "fault"), "w") as file:
        file.write(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGINT)


def seconds_to_prompt(fault: str) -> float:
    """From the fault to the exception in the cell."""
    timeout = 1.0 if fault == "deadline" else None
    run = distributed(gpus=RANKS, timeout=timeout)(_go_wrong)
    with tempfile.TemporaryDirectory() as folder:
        stop = threading.Thread(target=_press_stop, args=[folder])
        began = time.monotonic()
        try:
            if fault.startswith("stop"):
                stop.start()
            run.distributed(fault, folder)
        except (KeyboardInterrupt, DistributedTimeoutError, RankError):
            ended = time.monotonic()
        else:
            raise AssertionError(f"{fault}: nothing was raised")
        if timeout is not None:
            return ended - began - timeout
        with open(os.path.join(folder, "fault")) as file:
            return ended - float(file.read())
