"""A cell that keeps its output to itself keeps that of its ranks, too."""

from __future__ import annotations

import pytest

from tests.support.notebook import Notebook

TALK = """
    @distributed(gpus=2)
    def talk():
        import sys
        from IPython.display import HTML, display
        print("same"); print("own", os.environ["RANK"]); print("wrong", file=sys.stderr)
        display(HTML("<b>bold</b>"))
        return 7
    """
ALL = "all(line in {}.splitlines() for line in ('[0] own 0', '[1] own 1'))"


@pytest.fixture
def talk(notebook: Notebook) -> Notebook:
    notebook.ok(TALK)
    return notebook


def test_capture_keeps_text_displays_and_the_status_line(talk: Notebook) -> None:
    run = talk.run("%%capture kept\nvalues = talk.distributed()")
    assert not [m for m in run.messages if m["msg_type"] in ("stream", "display_data")]
    talk.ok(f"assert {ALL.format('kept.stdout')}, kept.stdout")
    talk.ok("assert 'wrong' in kept.stderr and values == [7, 7]")
    shown = talk.run("kept.show()")
    texts = [content["data"] for content in shown.of_type("display_data")]
    assert any("bold" in data.get("text/html", "") for data in texts)
    assert "✓ 2 ranks" in texts[0]["text/plain"]  # what the line said last


def test_capture_of_text_alone_shows_the_displays_of_a_cell(talk: Notebook) -> None:
    cell = "%%capture --no-display kept\n%%distributed --gpus 2 --fresh\nprint('kept')\n6 * 7"
    run = talk.run(cell)
    assert not run.of_type("stream")
    assert any("42" in content["data"]["text/plain"] for content in run.of_type("display_data"))
    talk.ok("assert '] kept\\n' in kept.stdout, kept.stdout")


def test_a_redirected_stdout_takes_the_lines_of_ranks(talk: Notebook) -> None:
    run = talk.run("""
        import contextlib, io
        with contextlib.redirect_stdout(io.StringIO()) as text:
            talk.distributed()
        """)
    assert run.status == "ok" and not run.out
    assert "wrong" in run.text("stderr")
    talk.ok(f"assert {ALL.format('text.getvalue()')}, text.getvalue()")
