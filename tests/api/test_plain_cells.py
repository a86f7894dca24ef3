"""Cells that need no transformation are recognised, by what IPython itself makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from serverless_gpu.plain_cells import transformed

PLAIN = [
    "x = 1\ny = 2\n",
    "def f():\n    return 5 % 2\n",
    "text = '''\n  100 % of it\n'''\nprint(text)\n",
    "if a != b:\n    c = d\n",
    "x = 1\r\ny = 2\r\n",
    "await f()\nawait g()\n",
    "x = 1\ny = 2",
    "x = 1\n# what follows is nothing\n\n\n",
]
TRANSFORMED = [
    "%time f()\nx = 1\n",
    "x = 1\n    %time f()\n",
    "!ls\nx = 1\n",
    "files = !ls\nprint(files)\n",
    "files =!ls\nprint(files)\n",
    "x = %who_ls\nprint(x)\n",
    "x = 1\nx?\n",
    "x = 1\nx.real??\n",
    "?x\nx = 1\n",
    "/f 1\nx = 1\n",
    ",f 1\nx = 1\n",
    ";f 1\nx = 1\n",
    ">>> x = 1\n>>> y = 2\n",
    "In [1]: x = 1\nIn [2]: y = 2\n",
    "\nx = 1\ny = 2\n",
    "    x = 1\n    y = 2\n",
]


@pytest.fixture(scope="module")
def shell() -> Iterator[Any]:
    made: Any = InteractiveShell()  # type: ignore[no-untyped-call]
    yield made
    if made.history_manager is not None:
        made.history_manager.end_session()


@pytest.mark.parametrize("cell", PLAIN)
def test_plain_cells_are_recognised_and_ipython_leaves_them(shell: Any, cell: str) -> None:
    assert transformed(shell, cell) is not None
    assert transformed(shell, cell) == shell.transform_cell(cell)


@pytest.mark.parametrize("cell", TRANSFORMED)
def test_cells_that_ipython_changes_are_not_plain(shell: Any, cell: str) -> None:
    assert shell.transform_cell(cell) != cell
    assert transformed(shell, cell) is None


@pytest.mark.parametrize("cell", ["", "\n", "  x = 1\n", "?x\n", "%who\n", "!ls\n", "x = !ls\n"])
def test_cells_of_one_line_that_are_not_python_are_not_plain(shell: Any, cell: str) -> None:
    assert transformed(shell, cell) is None


@pytest.mark.parametrize(
    "cell",
    ["pass", "pass\n", "x = 1\n\n", "f(\n", "'''\n", "x = 1; y = 2;\n", "# no code\n", "1 + \\\n"],
)
def test_cells_of_one_line_are_plain(shell: Any, cell: str) -> None:
    assert transformed(shell, cell) == shell.transform_cell(cell)
    assert str(transformed(shell, cell)).rstrip("\n") == cell.rstrip("\n")


@pytest.mark.parametrize("cell", ["who\n", "cd ..\n", "exit\n", "len 'abc'\n"])
@pytest.mark.parametrize("autocall", [0, 1, 2])
def test_automagic_and_autocall_see_cells_of_one_line(shell: Any, cell: str, autocall: int) -> None:
    shell.autocall = autocall
    assert transformed(shell, cell) == shell.transform_cell(cell)
    shell.autocall = 0


def test_a_magic_of_one_line_needs_no_percent_sign(shell: Any) -> None:
    assert transformed(shell, "who\n") == "get_ipython().run_line_magic('who', '')\n"


def test_what_is_called_plain_of_a_large_text_is_left_by_ipython(shell: Any) -> None:
    source = (Path(__file__).parents[2] / "serverless_gpu" / "decorator.py").read_text()
    lines = source.splitlines(keepends=True)
    pieces = ["".join(lines[at : at + 9]) for at in range(len(lines))]
    plain = [piece for piece in [source, *pieces] if transformed(shell, piece)]

    assert len(plain) > 5  # most begin or end in the middle of something
    for piece in plain:
        assert transformed(shell, piece) == shell.transform_cell(piece)


def test_a_transformation_of_the_user_makes_no_cell_plain(shell: Any) -> None:
    cell = PLAIN[0]
    shell.input_transformers_post.append(lambda lines: [*lines, "z = 3\n"])
    assert transformed(shell, cell) is None
    shell.input_transformers_post.clear()
    shell.input_transformers_cleanup.append(lambda lines: [*lines, "z = 3\n"])
    assert transformed(shell, cell) is None
    shell.input_transformers_cleanup.pop()
    assert transformed(shell, cell) is not None


MAGICS = [
    "%%bash\nls\n",
    "%%bash\nls",
    "%%distributed --gpus 2\n\nx = !ls\ny?\n%time z\n",
    "%%time f(\n'''\n",
    "%%html \n\x0c<b>\u2028\u00e9 \\' \"</b>\r\n",
    "%%a 'b' ?\nz ?\n",
    "%%time\n%%time\nx\n",
]
#: Help, prompts before their code, and what is no cell magic at all.
NO_MAGICS = [
    "%%time?\n",
    "%%time??\nx\n",
    "%%bash\n>>> ls\n",
    "%%bash\n... ls\n",
    "%%bash\nIn [1]: ls\n",
]


@pytest.mark.parametrize(
    "cell", [*MAGICS, *NO_MAGICS, "%%time", "%%\n", "%% x\ny\n", " %%bash\nls\n"]
)
def test_a_cell_magic_is_the_call_that_ipython_makes_of_it(shell: Any, cell: str) -> None:
    assert transformed(shell, cell) in (shell.transform_cell(cell), None)
    assert cell not in MAGICS or transformed(shell, cell) is not None
