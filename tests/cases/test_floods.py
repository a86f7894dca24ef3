"""More output than a cell can show."""

from __future__ import annotations

import re

from tests.support.notebook import Notebook, plain


def test_c086_a_lot_of_output_blocks_nobody(notebook: Notebook) -> None:
    cell = """
        @distributed(gpus=2)
        def f():
            import sys
            sys.stdout.write("y" * 5_000_000); sys.stderr.write("z" * 5_000_000)
            os.write(1, os.urandom(200_000))
            print("end", flush=True); return "ok"
        assert f.distributed() == ["ok", "ok"]
        """
    assert notebook.run(cell).status == "ok"
    notebook.ok(
        """
        import threading, ctypes
        out = []
        th = threading.Thread(target=lambda: out.append(f.distributed())); th.start()
        ctypes.PyDLL(None).sleep(2); th.join()
        assert out == [["ok", "ok"]]
        """
    )


def test_a_cell_shows_two_megabytes_of_a_flood_and_the_log_has_all(notebook: Notebook) -> None:
    run = notebook.run(
        """
        %%distributed --gpus 2
        import os
        for i in range(60_000): print("rank", os.environ["RANK"], "line", i)
        """
    )
    text = plain(run.out)
    assert 1_000_000 < len(run.out) < 2_400_000
    shown = re.findall(r"^\[(\d)\] rank \1 line (\d+)$", text, re.MULTILINE)
    assert shown[0] == ("0", "0")
    assert shown[-1][1] == "59999"
    hidden = re.search(r"^… ([\d,]+) lines not shown; all are in the log", text, re.MULTILINE)
    assert hidden is not None
    assert len(shown) + int(hidden[1].replace(",", "")) == 120_000
    for rank in (0, 1):
        log = notebook.ok(f"%distributed logs {rank}")
        assert f"rank {rank} line 59999" in log


def test_how_much_a_cell_shows_can_be_chosen(notebook: Notebook) -> None:
    notebook.ok("os.environ['SERVERLESS_GPU_OUTPUT_MB'] = '0.01'")
    code = "%%distributed --gpus 1\nfor i in range(2000): print('line', i)"
    text = notebook.ok(code)
    assert "line 0\n" in text and "line 1999\n" in text and "line 1500\n" not in text
    notebook.ok("os.environ['SERVERLESS_GPU_OUTPUT_MB'] = 'much'")
    assert "SERVERLESS_GPU_OUTPUT_MB takes megabytes" in notebook.error(code)
    notebook.ok("del os.environ['SERVERLESS_GPU_OUTPUT_MB']")
    assert len(notebook.ok(code).splitlines()) == 2000
