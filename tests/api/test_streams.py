"""sys.stdout and sys.stderr of a rank: as any program expects them, in order, and nothing lost."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from rank_code import rank_number

from serverless_gpu import RankDiedError, distributed
from tests.support import scripts

#: More lines than go out one by one.
FLOOD = 3000


def test_stdout_is_an_ordinary_text_stream(capfd: pytest.CaptureFixture[str]) -> None:
    @distributed(gpus=1)
    def use() -> dict[str, object]:
        import io
        import sys

        written = sys.stdout.write("héllo\n")
        sys.stdout.writelines(["one\n", "two\n"])
        sys.stdout.buffer.write("bytes é\n".encode())
        print("surrogate \udc80")
        print("end", file=sys.__stdout__)
        return {
            "written": written,
            "text": isinstance(sys.stdout, io.TextIOBase),
            "encoding": sys.stdout.encoding,
            "fileno": (sys.stdout.fileno(), sys.stderr.fileno()),
            "isatty": sys.stdout.isatty(),
            "name": sys.stdout.name,
            "writable": sys.stdout.writable(),
            "line_buffering": sys.stdout.line_buffering,
        }

    assert use.distributed() == [
        {
            "written": 6,
            "text": True,
            "encoding": "utf-8",
            "fileno": (1, 2),
            "isatty": False,
            "name": "<stdout>",
            "writable": True,
            "line_buffering": True,
        }
    ]
    assert capfd.readouterr().out == "héllo\none\ntwo\nbytes é\nsurrogate \\udc80\nend\n"


def test_stdout_can_be_reconfigured_closed_and_refuses_what_is_no_text(
    capfd: pytest.CaptureFixture[str],
) -> None:
    @distributed(gpus=1)
    def use() -> list[str]:
        import sys

        said = []
        try:
            sys.stdout.write(b"bytes")  # type: ignore[arg-type]
        except TypeError as error:
            said.append(str(error))
        sys.stdout.reconfigure(encoding="ascii", errors="replace")  # type: ignore[union-attr]
        print("é")
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        print("é")
        sys.stdout.reconfigure(newline="\r\n")  # type: ignore[union-attr]
        sys.stdout.write("dos\n")
        sys.stderr.close()
        try:
            print("x", file=sys.stderr)
        except ValueError as error:
            said.append(str(error))
        return said

    assert use.distributed() == [
        ["write() argument must be str, not bytes", "I/O operation on closed file."]
    ]
    assert capfd.readouterr().out == "?\né\ndos\n"


def test_in_a_flood_the_order_against_subprocesses_and_bytes_is_kept(
    capfd: pytest.CaptureFixture[str],
) -> None:
    @distributed(gpus=1)
    def flood() -> None:
        import subprocess
        import sys

        for turn in range(3):
            for number in range(FLOOD):
                print("line", number)
            subprocess.run(["echo", f"from echo {turn}"], check=True)
            os.system(f"echo from system {turn}")
            for number in range(FLOOD):
                print("line", number)
            sys.stdout.buffer.write(f"bytes {turn}\n".encode())

    flood.distributed()
    block = [f"line {number}" for number in range(FLOOD)]
    expected = []
    for turn in range(3):
        expected += [*block, f"from echo {turn}", f"from system {turn}", *block, f"bytes {turn}"]
    assert capfd.readouterr().out.splitlines() == expected


def test_a_child_that_user_code_forks_repeats_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    @distributed(gpus=1)
    def fork() -> int:
        for number in range(FLOOD):
            print("parent", number)
        print("begun ", end="")
        child = os.fork()
        if child == 0:
            print("child")
            print("its end", end="")
            os._exit(0)
        os.waitpid(child, 0)
        print("\nended")
        return os.getpid()

    fork.distributed()
    lines = capfd.readouterr().out.splitlines()
    assert lines[:FLOOD] == [f"parent {number}" for number in range(FLOOD)]
    assert lines[FLOOD:] == ["begun child", "its end", "ended"]


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_rank_that_ends_itself_in_a_flood_loses_no_line(
    end: str, capfd: pytest.CaptureFixture[str]
) -> None:
    @distributed(gpus=1)
    def flood() -> None:
        for number in range(FLOOD):
            print("line", number)
        exec(end, {"os": os})

    with pytest.raises(RankDiedError):
        flood.distributed()
    lines = capfd.readouterr().out.splitlines()
    assert lines == [f"line {number}" for number in range(FLOOD)]


def test_what_waits_in_a_flood_is_written_though_the_rank_writes_nothing_more(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """By the agent's thread: the main thread sits in C code that holds the GIL."""

    @distributed(gpus=2)
    def flood(read: int, write: int) -> None:
        import ctypes

        if rank_number() == 0:
            for number in range(FLOOD):
                print("line", number)
            print("partial", end="")
            # A reader of the pipe below sees the text; nothing of Python runs until it has.
            ctypes.PyDLL(None).usleep(500_000)
            ctypes.PyDLL(None).kill(os.getpid(), 9)

    with pytest.raises(RankDiedError):
        flood.distributed(0, 0)
    lines = capfd.readouterr().out.splitlines()
    assert lines == [f"[0] line {number}" for number in range(FLOOD)] + ["[0] partial"]


def test_stdout_and_stderr_keep_their_order_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    from serverless_gpu import pool

    @distributed(gpus=1)
    def alternate() -> None:
        import sys

        for number in range(FLOOD):
            print("out", number)
            print("err", number, file=sys.stderr)

    alternate.distributed()
    running = pool.running()
    assert running is not None
    logs = sorted((running.folder / "logs").glob("call-*"), key=lambda path: path.stat().st_mtime)
    lines = (logs[-1] / "rank-0.log").read_text().splitlines()
    assert lines == [f"{name} {number}" for number in range(FLOOD) for name in ("out", "err")]


def test_a_redirected_descriptor_takes_what_is_printed(
    capfd: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    @distributed(gpus=1)
    def redirect(path: str) -> None:
        import sys

        print("before")
        sys.stdout.flush()
        kept = os.dup(1)
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        print("to the file")
        subprocess.run(["echo", "echo too"], check=True)
        sys.stdout.flush()
        os.dup2(kept, 1)
        print("after")

    path = os.path.join(str(tmp_path), "file")
    redirect.distributed(path)
    assert capfd.readouterr().out == "before\nafter\n"
    with open(path) as f:
        assert f.read() == "to the file\necho too\n"


def test_a_rank_keeps_its_channel_whatever_numbers_its_descriptors_had(tmp_path: Path) -> None:
    """Its input is opened under the lowest free number, which may be the channel's own."""
    code = """
        import fcntl, os, socket
        from serverless_gpu import _core
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        read, write = os.pipe()
        if os.fork() == 0:
            out, channel = (fcntl.fcntl(fd, fcntl.F_DUPFD, 40) for fd in (write, theirs.fileno()))
            os.closerange(3, 40)
            _core.enter_rank(None, out, out, channel)
            os.write(1, b"through the pipe")
            os.write(3, b"through the channel")
            os._exit(0)
        os.wait()
        print(os.read(read, 100).decode(), ours.recv(100).decode(), sep=", ")
    """
    script = scripts.run(code, tmp_path)
    assert script.lines == ["through the pipe, through the channel"]
