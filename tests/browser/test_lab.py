"""What a person does in JupyterLab: pick the kernel, run cells, Stop, restart, save."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest
from playwright.sync_api import expect

from tests.support import lab
from tests.support.shown import ranks_of

pytestmark = pytest.mark.timeout(400)


def _pids(area: object) -> list[int]:
    return [int(n) for n in re.findall(r"pid=(\d+)", area.inner_text())]  # type: ignore[attr-defined]


def test_a_cell_on_eight_ranks_shows_its_lines_and_the_link_of_its_run(
    notebook: lab.Notebook,
) -> None:
    area = notebook.run("%%distributed --gpus 8\nprint('hello from the cell')\n40 + 2")
    assert ranks_of(area.inner_text(), "hello from the cell") == list(range(8))
    expect(area).to_contain_text("[0-7] 42")
    status = area.locator('[role="status"]')
    expect(status).to_have_count(1)
    expect(status).to_contain_text("8 ranks · CPU")
    expect(status.locator("a")).to_have_attribute("href", re.compile(r"#/experiments/\d+/runs/\w+"))
    notebook.screenshot("cell-on-eight-ranks")


def test_lines_appear_while_the_cell_runs(notebook: lab.Notebook) -> None:
    source = (
        "%%distributed --gpus 2\nimport time, pathlib\nprint('first line')\n"
        "while not pathlib.Path('go').exists(): time.sleep(.05)\nprint('second line')"
    )
    area = notebook.run(source, wait=False)
    expect(area).to_contain_text("first line")
    expect(area).not_to_contain_text("second line")
    # The cell ends only once this has been seen.
    notebook.page.evaluate(
        "() => window.jupyterapp.serviceManager.contents.save('go',"
        " {type: 'file', format: 'text', content: ''})"
    )
    expect(area.locator('[role="status"]')).to_contain_text("done in")
    assert ranks_of(area.inner_text(), "second line") == [0, 1]


def test_stop_ends_a_long_cell_and_the_next_one_works(notebook: lab.Notebook) -> None:
    area = notebook.run(
        "%%distributed --gpus 4\nimport time\nkept = 7\nprint('waiting')\ntime.sleep(600)",
        wait=False,
    )
    expect(area).to_contain_text("waiting")
    notebook.page.locator('[data-command="notebook:interrupt-kernel"]').first.click()
    expect(area).to_contain_text("KeyboardInterrupt")
    expect(area.locator('[role="status"]')).to_contain_text("stopped")
    notebook.screenshot("stopped-cell")
    after = notebook.run("%%distributed\nprint('kept', kept)")
    assert ranks_of(after.inner_text(), "kept 7") == [0, 1, 2, 3]


def test_an_error_shows_the_rank_s_line_and_one_traceback(notebook: lab.Notebook) -> None:
    area = notebook.run(
        "%%distributed --gpus 2\nimport os\n"
        "if os.environ['RANK'] == '1':\n    raise ValueError('bad batch')"
    )
    expect(area).to_contain_text("ValueError: bad batch")
    expect(area).to_contain_text("rank 1")
    assert area.inner_text().count("raise ValueError('bad batch')") == 1
    assert "serverless_gpu/" not in area.inner_text()
    notebook.screenshot("error-of-one-rank")


def test_restart_ends_the_ranks_and_the_kernel_works_again(notebook: lab.Notebook) -> None:
    area = notebook.run("%%distributed --gpus 2\nimport os\nprint(f'pid={os.getpid()}')")
    expect(area).to_contain_text("pid=")
    pids = _pids(area)
    handles = [os.pidfd_open(pid) for pid in pids]
    notebook.start_command("kernelmenu:restart")
    notebook.page.locator(".jp-Dialog button", has_text="Restart").click()
    for handle in handles:
        assert _ended(handle), f"one of the ranks {pids} outlived the restart"
    again = notebook.run("%%distributed --gpus 2\nprint('new ranks')")
    assert ranks_of(again.inner_text(), "new ranks") == [0, 1]


def _ended(pidfd: int, limit: float = 30.0) -> bool:
    import select

    ready, _, _ = select.select([pidfd], [], [], limit)
    os.close(pidfd)
    return bool(ready)


def test_a_killed_rank_is_named(notebook: lab.Notebook) -> None:
    area = notebook.run(
        "%%distributed --gpus 2\nimport os, signal\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if os.environ['RANK'] == '1':\n    os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()"
    )
    expect(area).to_contain_text("rank 1")
    expect(area).to_contain_text(signal.Signals.SIGKILL.name)


def test_the_saved_notebook_reads_well_without_a_browser(
    notebook: lab.Notebook, server: lab.Server
) -> None:
    notebook.run(
        "%%distributed --gpus 2\nimport sys, time\nfor i in range(200):\n"
        "    sys.stderr.write(f'\\r{i}/200'); sys.stderr.flush()\nprint('done')"
    )
    # The command would ask for a name at the first save.
    notebook.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.save()")
    path = notebook.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.path")
    saved = json.loads((server.root / path).read_text())
    outputs = saved["cells"][0]["outputs"]
    text = "".join("".join(o.get("text", "")) for o in outputs)
    assert "done" in text
    assert len(text.splitlines()) < 10, text
    status = [o for o in outputs if o["output_type"] == "display_data"]
    assert len(status) == 1
    assert "".join(status[0]["data"]["text/plain"]).startswith("✓ 2 ranks · CPU")
