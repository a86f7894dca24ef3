"""The log of one kind of test, and the commands whose output it is."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "test-logs"
KIND_TIMEOUT_S = 1200.0  # a kind that takes longer hangs; the slowest takes a quarter of it

_running: set[int] = set()  # process groups of commands, whichever thread waits for them


def kill_running() -> None:
    """Ends every command that runs now."""
    for group in list(_running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


@dataclass
class Log:
    """The log file of one kind, and the deadline that all its commands share."""

    path: Path
    deadline: float = field(default_factory=lambda: time.monotonic() + KIND_TIMEOUT_S)

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")

    def run(self, *command: str) -> bool:
        """Runs a command from the root of the repository. True if it ended with 0.

        At the deadline its process group is killed, and the log says so.
        """
        with self.path.open("ab") as out:
            out.write(f"\n$ {' '.join(command)}\n".encode())
            out.flush()
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            _running.add(process.pid)
            try:
                code = process.wait(timeout=max(0.0, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
                out.write(f"\nKilled: not done {KIND_TIMEOUT_S:.0f} s after the start.\n".encode())
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
            finally:
                _running.discard(process.pid)
            if code != 0:
                out.write(f"\nEnded with {code}.\n".encode())
        return code == 0

    def write(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8") as out:
            out.write(text)
