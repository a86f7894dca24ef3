"""What a person sees is readable: in the light and in the dark, in a narrow window."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import lab

#: The least contrast at which large text and marks count as readable (WCAG 2, 1.4.11).
CONTRAST = 3.0

#: Contrast of an element's text against all that is behind it.
MEASURE = """
element => {
    const parse = text => {
        const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
        return [r, g, b, a];
    };
    const over = (front, back) =>
        [0, 1, 2].map(i => front[i] * front[3] + back[i] * (1 - front[3]));
    const light = color => {
        const linear = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        return 0.2126 * linear(color[0]) + 0.7152 * linear(color[1]) + 0.0722 * linear(color[2]);
    };
    const behind = [];
    for (let one = element; one; one = one.parentElement)
        behind.unshift(parse(getComputedStyle(one).backgroundColor));
    const ground = behind.reduce((back, front) => over(front, back), [255, 255, 255]);
    const text = over(parse(getComputedStyle(element).color), ground);
    const [dark, bright] = [light(text), light(ground)].sort((x, y) => x - y);
    return (bright + 0.05) / (dark + 0.05);
}
"""


@pytest.fixture
def themed(notebook: lab.Notebook) -> Iterator[lab.Notebook]:
    yield notebook
    _theme(notebook, "JupyterLab Light")
    notebook.page.set_viewport_size({"width": 1200, "height": 1000})


def _theme(notebook: lab.Notebook, name: str) -> None:
    notebook.page.evaluate(
        "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", name
    )
    light = "true" if name.endswith("Light") else "false"
    notebook.page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached")


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_the_ranks_prefix_and_the_status_line_are_readable(
    themed: lab.Notebook, theme: str
) -> None:
    _theme(themed, theme)
    area = themed.run(
        "%%distributed --gpus 2\nimport sys\nprint('out'); print('err', file=sys.stderr)"
    )
    for output in ("out", "err"):
        prefix = area.locator("pre", has_text=output).locator("span").first
        assert prefix.evaluate(MEASURE) >= CONTRAST, f"the prefix of {output} in {theme}"
    assert area.locator('[role="status"]').evaluate(MEASURE) >= CONTRAST
    themed.screenshot(f"readable-{theme.split()[-1].lower()}")


def test_nothing_runs_out_of_a_narrow_window(themed: lab.Notebook) -> None:
    themed.command("application:toggle-left-area")
    themed.page.set_viewport_size({"width": 480, "height": 900})
    area = themed.run("%%distributed --gpus 2\nprint('word ' * 60)\nraise ValueError('y' * 300)")
    status = area.locator('[role="status"]')
    assert status.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), "the status line is cut"
    assert area.evaluate("e => e.getBoundingClientRect().right <= window.innerWidth")
    themed.screenshot("narrow")
    themed.command("application:toggle-left-area")
