"""Plain Python scripts that use the package, as processes of their own; nothing of them stays."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import serverless_gpu

PATIENCE = 90.0  # seconds; what takes longer, on a loaded machine too, is a failure
PACKAGE_ROOT = Path(serverless_gpu.__file__).resolve().parent.parent
_MARK = "SERVERLESS_GPU_TEST_MARK"


class Script:
    """A running script. Its lines are read as they come; stderr goes with stdout."""

    def __init__(self, path: Path, env: Mapping[str, str], before: str = "") -> None:
        self.mark = uuid.uuid4().hex
        python_path = os.pathsep.join(
            filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")])
        )
        self.process = subprocess.Popen(
            [*_shell(before), sys.executable, "-u", str(path)],
            env={**os.environ, "PYTHONPATH": python_path, **env, _MARK: self.mark},
            cwd=path.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def wait_for(self, text: str, timeout: float = PATIENCE) -> str:
        """The next line with `text` in it."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self._queue.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"waited for {text!r} after {self.lines[-20:]}") from None
            if line is None:
                raise EOFError(f"the script ended before {text!r}: {self.lines[-20:]}")
            self.lines.append(line)
            if text in line:
                return line

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def finish(self, timeout: float = PATIENCE) -> str:
        """Waits for the end of everything that holds its output; all lines."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self._queue.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"the script did not end after {self.lines[-20:]}") from None
            if line is None:
                break
            self.lines.append(line)
        self.process.wait(timeout)
        return self.text

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def code(self) -> int:
        """How the process ended; negative: the signal."""
        return self.process.wait(PATIENCE)

    def left_over(self) -> list[int]:
        """Processes that descend from the script and live, wherever they hang now."""
        return [pid for pid in marked(self.mark) if pid != self.process.pid]


def marked(mark: str) -> list[int]:
    """Processes that inherited the script's environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_until_none(mark: str, timeout: float = 10.0) -> list[int]:
    """What is left of a script's processes at the deadline: nothing, if all is well."""
    deadline = time.monotonic() + timeout
    while (left := marked(mark)) and time.monotonic() < deadline:
        pidfd = None
        try:
            pidfd = os.pidfd_open(left[0])
            import select

            select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))
        except ProcessLookupError:
            continue
        finally:
            if pidfd is not None:
                os.close(pidfd)
    return left


def _shell(before: str) -> list[str]:
    return ["sh", "-e", "-c", f'{before}\nexec "$@"', "sh"] if before else []


@contextmanager
def running(code: str, folder: Path, before: str = "", **env: str) -> Iterator[Script]:
    """Starts `code` as script.py in `folder`; at the end of the block none of it is left.

    before: shell commands whose effect the script inherits, such as ``ulimit -n 64``.
    """
    path = folder / "script.py"
    path.write_text(textwrap.dedent(code))
    script = Script(path, env, before)
    try:
        yield script
    finally:
        if script.process.poll() is None:
            script.process.kill()
            script.process.wait(PATIENCE)
        left = wait_until_none(script.mark)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"{len(left)} processes outlived the script"


def run(code: str, folder: Path, timeout: float = PATIENCE, before: str = "", **env: str) -> Script:
    """Runs `code` to its end."""
    with running(code, folder, before, **env) as script:
        script.finish(timeout)
    return script
