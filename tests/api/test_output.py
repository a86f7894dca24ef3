"""What ranks print, where the notebook is a plain process: its own stdout and stderr."""

from __future__ import annotations

import re

import pytest
from rank_code import rank_number

from serverless_gpu import distributed
from tests.support.shown import ranks_of


def test_every_way_of_writing_arrives_with_its_rank(capfd: pytest.CaptureFixture[str]) -> None:
    @distributed(gpus=3)
    def talk() -> None:
        import ctypes
        import logging
        import os
        import sys
        import warnings

        print("out", rank_number())
        print("err", rank_number(), file=sys.stderr)
        warnings.warn(f"careful {rank_number()}", stacklevel=1)
        logging.getLogger("x").warning("logged %d", rank_number())
        os.write(1, f"raw {rank_number()}\n".encode())
        ctypes.CDLL(None).puts(f"native {rank_number()}".encode())
        sys.stdout.write(f"no newline at end {rank_number()}")

    talk.distributed()
    said = capfd.readouterr()
    for rank in range(3):
        for text in ("out", "raw", "native", "no newline at end"):
            assert f"[{rank}] {text} {rank}\n" in said.out
        assert f"[{rank}] err {rank}\n" in said.err
        assert f"[{rank}] logged {rank}\n" in said.err
        assert f"careful {rank}" in said.err


def test_a_rank_s_lines_keep_their_order(capfd: pytest.CaptureFixture[str]) -> None:
    @distributed(gpus=2)
    def count() -> None:
        for number in range(500):
            print("line", rank_number(), number)

    count.distributed()
    said = capfd.readouterr().out
    for rank in (0, 1):
        numbers = re.findall(rf"^\[{rank}\] line {rank} (\d+)$", said, re.MULTILINE)
        assert numbers == [str(number) for number in range(500)]


def test_equal_lines_are_shown_once(capfd: pytest.CaptureFixture[str]) -> None:
    @distributed(gpus=4)
    def same() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        for epoch in range(3):
            dist.barrier()
            print("epoch", epoch)

    same.distributed()
    said = capfd.readouterr().out
    assert said.count("epoch") < 12
    for epoch in range(3):
        assert re.search(rf"^\[[\d,-]+\] epoch {epoch}$", said, re.MULTILINE)


def test_one_rank_s_lines_have_no_prefix(capfd: pytest.CaptureFixture[str]) -> None:
    distributed(gpus=1)(print).distributed("plain")
    assert capfd.readouterr().out == "plain\n"


def test_progress_bars_leave_their_last_state(capfd: pytest.CaptureFixture[str]) -> None:
    @distributed(gpus=3)
    def progress() -> None:
        import sys

        for number in range(200):
            sys.stdout.write(f"\r[{rank_number()}] {number}/200")
            sys.stdout.flush()
        print("\ndone", rank_number())

    progress.distributed()
    said = capfd.readouterr().out
    for rank in range(3):
        assert f"[{rank}] 199/200" in said
        assert f"done {rank}" in said
    assert len(re.split(r"[\r\n]+", said)) < 60


def test_a_flood_of_lines_long_lines_and_raw_bytes_passes(
    capfd: pytest.CaptureFixture[str],
) -> None:
    @distributed(gpus=2)
    def flood() -> str:
        import os
        import sys

        for number in range(50_000):
            print("line", number, "x" * 50)
        sys.stdout.write("y" * 5_000_000)
        sys.stderr.write("z" * 5_000_000)
        os.write(1, os.urandom(200_000))
        print("\nend", flush=True)
        return "ok"

    assert flood.distributed() == ["ok", "ok"]
    said = capfd.readouterr()
    assert "line 0 " in said.out and "end" in said.out
    assert len(said.out) < 20_000_000  # random bytes have long forms


def test_the_log_holds_everything(capfd: pytest.CaptureFixture[str]) -> None:
    from pathlib import Path

    from serverless_gpu import pool

    @distributed(gpus=2)
    def flood() -> None:
        for number in range(20_000):
            print("line", number)

    flood.distributed()
    running = pool.running()
    assert running is not None
    logs = sorted(
        (Path(running.core.folder) / "logs").glob("call-*"), key=lambda p: p.stat().st_mtime
    )
    lines = (logs[-1] / "rank-1.log").read_text().splitlines()
    assert lines == [f"line {number}" for number in range(20_000)]


def test_figures_and_rich_objects_have_a_text_form_in_a_script(
    capfd: pytest.CaptureFixture[str],
) -> None:
    @distributed(gpus=2)
    def show() -> None:
        import matplotlib.pyplot as plt
        from IPython.display import HTML, display

        plt.plot([0, 1])
        plt.show()
        display(HTML("<b>bold</b>"))
        display({"rank": rank_number()})

    show.distributed()
    said = capfd.readouterr()
    assert "Traceback" not in said.err
    assert "<Figure size 640x480 with 1 Axes>" in said.out
    assert "<IPython.core.display.HTML object>" in said.out
    for rank in (0, 1):
        assert f"[{rank}] {{'rank': {rank}}}" in said.out


def test_logging_handlers_do_not_pile_up(capfd: pytest.CaptureFixture[str]) -> None:
    @distributed(gpus=1)
    def log() -> int:
        import logging
        import sys

        logger = logging.getLogger("train")
        logger.setLevel("INFO")
        logger.addHandler(logging.StreamHandler(sys.stdout))
        logger.info("step")
        return len(logger.handlers)

    assert [log.distributed() for _ in range(3)] == [[1]] * 3
    assert capfd.readouterr().out.count("step") == 3


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (None, [0, 1, 2]),
        ("all", [0, 1, 2]),
        ("0,2", [0, 2]),
        ("none", []),
    ],
)
def test_a_call_says_what_is_shown_of_its_output(
    capfd: pytest.CaptureFixture[str], output: str | None, shown: list[int]
) -> None:
    @distributed(gpus=3, output=output)
    def talk() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.barrier()
        print("same")

    capfd.readouterr()
    talk.distributed()
    said = capfd.readouterr().out
    assert ranks_of(said, "same") == shown
    if output == "all":
        assert said.count("same") == 3


@pytest.mark.parametrize("output", ["most", "", "0-", "0; 1"])
def test_another_choice_of_output_is_refused_with_those_there_are(output: str) -> None:
    with pytest.raises(ValueError, match="output takes merged, all, none, or ranks such as"):
        distributed(gpus=3, output=output)
