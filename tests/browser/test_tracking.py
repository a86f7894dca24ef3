"""A person follows the link of a run: to MLflow's page for a local store."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from serverless_gpu.tracking import ui
from tests.support import lab

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not ui.available(), reason="MLflow's UI needs the full mlflow package, see the extra [ui]"
    ),
]


@pytest.fixture
def notebook(shared_page: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Notebook]:
    """In a JupyterLab whose notebooks make links by themselves."""
    root = tmp_path_factory.mktemp("lab")
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path_factory.mktemp("runtime"))}
    with lab.lab_server(root, SERVERLESS_GPU_ACCELERATOR="cpu", **runtime) as server:
        opened = lab.new_notebook(shared_page, server)
        yield opened
        opened.command("notebook:shutdown-kernel")


def test_the_link_of_a_run_opens_its_page_in_mlflow(notebook: lab.Notebook) -> None:
    area = notebook.run(
        "%%distributed --gpus 2 --name followed\nimport mlflow\n"
        "mlflow.log_metric('loss', 0.25)\nmlflow.log_param('lr', 0.1)"
    )
    link = area.locator('[role="status"] a')
    expect(link).to_have_text("followed")
    expect(link).to_have_attribute("href", re.compile(r"http://127\.0\.0\.1:\d+/#/experiments/"))
    with notebook.page.context.expect_page() as opening:
        link.click()
    page = opening.value
    expect(page.get_by_text("followed").first).to_be_visible()
    expect(page.get_by_text("loss").first).to_be_visible()
    expect(page.get_by_text("0.25").first).to_be_visible()
    page.set_viewport_size({"width": 1200, "height": 900})
    page.screenshot(path=lab.SCREENS / "run-in-mlflow.png")
    page.close()
