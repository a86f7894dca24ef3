"""What ranks print and show reaches its own cell, readable, and the saved notebook stays small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.notebook import Notebook, plain


def final_text(text: str) -> list[str]:
    """The lines a front end shows: a carriage return goes back to the start of its line."""
    return [line.rsplit("\r", 1)[-1] for line in text.split("\n")]


def test_c007_all_kinds_of_output_arrive(notebook: Notebook) -> None:
    run = notebook.run(
        """
        @distributed(gpus=3)
        def talk():
            import sys, warnings, logging
            print("out", os.environ["RANK"]); print("err", os.environ["RANK"], file=sys.stderr)
            warnings.warn("careful"); logging.getLogger("x").warning("logged")
            sys.stdout.write("no newline at end " + os.environ["RANK"])
        talk.distributed()
        """
    )
    out, err = plain(run.text("stdout")), plain(run.text("stderr"))
    for rank in range(3):
        assert f"[{rank}] out {rank}\n" in out and f"[{rank}] err {rank}\n" in err
        assert f"[{rank}] no newline at end {rank}\n" in out
    assert "careful" in err and "logged" in err


def test_c014_progress_bars_keep_their_last_state(notebook: Notebook) -> None:
    pytest.importorskip("tqdm")
    run = notebook.run(
        """
        @distributed(gpus=3)
        def f():
            from tqdm.auto import tqdm
            from tqdm import tqdm as plain
            from tqdm.notebook import tqdm as widget, trange
            for _ in tqdm(range(30), desc=f"auto {os.environ['RANK']}"): time.sleep(.01)
            for _ in plain(range(30), desc=f"txt {os.environ['RANK']}"): time.sleep(.01)
            for _ in widget(range(30), desc=f"nb {os.environ['RANK']}"): time.sleep(.01)
            for _ in trange(30, desc="all"): time.sleep(.01)
        f.distributed()
        """
    )
    assert run.status == "ok"
    lines = final_text(plain(run.text("stdout") + run.text("stderr")))
    for rank in range(3):
        for kind in ("auto", "txt", "nb"):
            assert sum(f"{kind} {rank}:" in line for line in lines) == 1
            assert any(f"{kind} {rank}: 100%" in line for line in lines)
    assert any("all: 100%" in line for line in lines)
    assert len(lines) <= 14, "one line per bar and rank, and what was begun before a bar"
    assert not any("widget-view" in str(m["data"]) for m in run.of_type("display_data"))


def test_c080_carriage_returns_do_not_grow_the_notebook(notebook: Notebook) -> None:
    run = notebook.run(
        """
        @distributed(gpus=3)
        def f():
            import sys
            for i in range(200):
                sys.stdout.write(f"\\r[{os.environ['RANK']}] {i}/200"); sys.stdout.flush()
                time.sleep(.002)
            print("\\ndone")
        f.distributed()
        """
    )
    assert run.status == "ok"
    lines = final_text(plain(run.out))
    for rank in range(3):
        assert any(f"[{rank}] 199/200" in line for line in lines)
    assert len(lines) < 60
    run = notebook.run(
        """
        %%distributed --gpus 3
        import sys
        for i in range(200): print(f"step {i}", end="\\r")
        """
    )
    lines = [line for line in final_text(plain(run.out)) if "step" in line]
    assert lines and all("step 199" in line for line in lines)


def test_c040_queued_cells_get_their_own_lines(notebook: Notebook) -> None:
    kernel = notebook.kernel
    first = kernel.send(
        "%%distributed --gpus 2\nimport os, time\n"
        "for i in range(3): print('first', i); time.sleep(.1)\nos.environ['RANK']"
    )
    second = kernel.send("%%distributed --gpus 2\nprint('second')")
    third = kernel.send("print('driver')")
    runs = [kernel.wait(sent) for sent in (first, second, third)]
    texts = [plain(run.out) for run in runs]
    assert "first 2" in texts[0] and "second" not in texts[0]
    assert "second" in texts[1] and "first" not in texts[1]
    assert texts[2] == "driver\n"
    shown = [plain(data["data"].get("text/plain", "")) for data in runs[0].of_type("display_data")]
    assert "[0] '0'" in shown and "[1] '1'" in shown


def test_c041_figures_and_html_of_ranks_are_shown(notebook: Notebook) -> None:
    pytest.importorskip("matplotlib")
    run = notebook.run(
        """
        @distributed(gpus=2)
        def f():
            import matplotlib.pyplot as plt
            from IPython.display import display, HTML, clear_output
            for e in range(3):
                if os.environ["RANK"] == "0":
                    clear_output(wait=True)
                    plt.plot([0, 1, e]); plt.title(f"epoch {e}"); plt.show()
            display(HTML("<b>rank</b> " + os.environ["RANK"]))
        f.distributed()
        """
    )
    assert run.status == "ok"
    shown = [m["data"] for m in run.of_type("display_data")]
    assert sum("image/png" in data for data in shown) == 1, "one figure, redrawn"
    redrawn = run.of_type("update_display_data")
    assert sum("image/png" in m["data"] for m in redrawn) == 2
    figure = next(i for i, data in enumerate(shown) if "image/png" in data)
    assert shown[figure - 1]["text/plain"] == "[0]", "its caption"
    for rank in (0, 1):
        assert any(f"<b>rank</b> {rank}" in data.get("text/html", "") for data in shown)
    assert not run.of_type("clear_output")


def test_a_loop_that_clears_leaves_its_last_lines_and_the_status_line(notebook: Notebook) -> None:
    run = notebook.run(
        """
        @distributed(gpus=1)
        def f():
            from IPython.display import clear_output, display
            for e in range(4):
                clear_output(wait=True)
                print("epoch", e)
                display("shown " + str(e))
        f.distributed()
        """
    )
    assert run.status == "ok"
    cleared = [at for at, m in enumerate(run.messages) if m["msg_type"] == "clear_output"]
    assert len(cleared) == 3, "there was nothing before the first line"
    first, *after = run.messages[cleared[-1] + 1 :]
    assert first["msg_type"] == "display_data"
    status = first["content"]["transient"]["display_id"]
    last = [m["content"] for m in after if m["msg_type"] == "update_display_data"][-1]
    assert last["transient"]["display_id"] == status and "done in" in last["data"]["text/plain"]
    assert [m["content"]["text"] for m in after if m["msg_type"] == "stream"] == ["epoch 3\n"]
    shown = [m["content"]["data"]["text/plain"] for m in after if m["msg_type"] == "display_data"]
    assert shown == ["'shown 3'"]


def test_c065_handlers_of_earlier_calls_do_not_repeat_lines(notebook: Notebook) -> None:
    run = notebook.run(
        """
        @distributed(gpus=2)
        def f():
            import logging, sys
            lg = logging.getLogger("train"); lg.setLevel("INFO")
            lg.addHandler(logging.StreamHandler(sys.stdout)); lg.info("step")
            return len(lg.handlers)
        assert [f.distributed() for _ in range(3)] == [[1, 1]] * 3
        """
    )
    assert run.status == "ok"
    assert 3 <= plain(run.out).count("step") <= 6


def _ranks_with(line: str, text: str) -> int:
    """How many ranks' lines there are that begin with `line`; ranks in step share one."""
    return sum(
        2 if "-" in ranks else 1 for ranks in re.findall(rf"\[([\d-]+)\] {line}", plain(text))
    )


def test_c079_late_lines_stay_with_their_cell(notebook: Notebook) -> None:
    kernel = notebook.kernel
    start = """
        %%distributed --gpus 2
        import threading, time
        go = threading.Event()
        def bg():
            go.wait(60)
            for i in range(5): print("late", i, flush=True)
        thread = threading.Thread(target=bg, daemon=True); thread.start()
        """
    import textwrap

    first = kernel.send(textwrap.dedent(start).strip())
    kernel.wait(first)
    second = kernel.send("%%distributed --gpus 2\ngo.set(); thread.join(); print('theirs')")
    parents: dict[str, str] = {}
    import time

    for message in kernel.published(time.monotonic() + 60, "the end of the second cell"):
        parent = message["parent_header"].get("msg_id", "")
        parents[parent] = parents.get(parent, "") + message["content"].get("text", "")
        if parent == second and message["content"].get("execution_state") == "idle":
            break
    kernel.reply(second)
    assert "theirs" in parents[second]
    assert "late" not in parents[second]
    while _ranks_with("late", parents.get(first, "")) < 10:
        message = next(kernel.published(time.monotonic() + 60, "the late lines"))
        assert message["parent_header"].get("msg_id", "") in (first, second)
        parents[first] = parents.get(first, "") + message["content"].get("text", "")
    late = plain(parents[first]).count("] late")
    # Who executes a notebook listens to one cell at a time: where the lines are must be said.
    number = kernel.run("0").content["execution_count"] - 2
    noted = kernel.run("%%distributed\npass").of_type("display_data")[0]["data"]["text/plain"]
    found = re.search(rf"{late} late lines of cell (\d+) are in (\S+)", noted)
    assert found is not None, noted
    assert int(found[1]) == number
    assert Path(found[2], "rank-1.log").read_text().count("late") == 5
    again = kernel.run("%%distributed\npass").of_type("display_data")[0]["data"]["text/plain"]
    assert "late" not in again


def test_a_widget_of_a_rank_is_a_line_that_says_where_widgets_work(notebook: Notebook) -> None:
    pytest.importorskip("ipywidgets")
    run = notebook.run(
        """
        %%distributed --gpus 2
        from ipywidgets import IntSlider
        from IPython.display import display
        display(IntSlider(3))
        """
    )
    assert run.status == "ok"
    shown = [m["data"] for m in run.of_type("display_data")]
    assert any("IntSlider(value=3)  (widgets work" in data["text/plain"] for data in shown)
    assert not any("widget-view" in str(data) for data in shown)


@pytest.mark.parametrize(
    "cell", ["print('said')", "6 * 7", "display({'text/plain': 'shown'}, raw=True)"]
)
def test_the_status_line_stands_above_all_that_ranks_show(notebook: Notebook, cell: str) -> None:
    run = notebook.run(f"%%distributed --mlflow off\n{cell}")
    kinds = ("stream", "display_data")
    first, *others = [m["content"] for m in run.messages if m["msg_type"] in kinds]
    assert first["data"]["text/plain"].startswith("● 8 ranks")
    assert others and not any("8 ranks" in str(other) for other in others)
    assert run.of_type("update_display_data")[-1]["data"]["text/plain"].startswith("✓ 8 ranks")


def test_displays_stand_between_the_lines_and_later_cells_update_them(notebook: Notebook) -> None:
    run = notebook.run(
        """
        %%distributed --gpus 2 --ranks 0
        from IPython.display import display, HTML
        print("before")
        handle = display(HTML("<b>old</b>"), display_id=True)
        print("after")
        """
    )
    assert run.status == "ok"
    kinds = [
        str(m["content"].get("text") or m["content"]["data"].get("text/html"))
        for m in run.messages
        if m["msg_type"] in ("stream", "display_data")
    ]
    order = [
        next(i for i, kind in enumerate(kinds) if text in kind)
        for text in ("before", "<b>old</b>", "after")
    ]
    assert order == sorted(order)
    shown = [m for m in run.of_type("display_data") if "<b>old</b>" in str(m["data"])]
    run = notebook.run('%%distributed --ranks 0\nhandle.update(HTML("<b>new</b>"))')
    updates = [m for m in run.of_type("update_display_data") if "<b>new</b>" in str(m["data"])]
    assert [m["transient"] for m in updates] == [shown[0]["transient"]]
    assert "[0]" in updates[0]["data"]["text/html"]


def test_a_figure_keeps_its_png_and_its_size(notebook: Notebook) -> None:
    pytest.importorskip("matplotlib")
    run = notebook.run(
        """
        %%distributed --ranks 0
        %config InlineBackend.figure_format = "retina"
        import matplotlib.pyplot as plt
        plt.figure(figsize=(2, 1)); plt.plot([0, 1]); plt.show()
        """
    )
    assert run.status == "ok"
    (figure,) = [m for m in run.of_type("display_data") if "image/png" in m["data"]]
    assert figure["metadata"]["image/png"]["width"] > 0
    caption = run.of_type("display_data")[-2]
    assert caption["data"]["text/plain"] == "[0]"
