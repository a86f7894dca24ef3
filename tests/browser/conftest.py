"""One JupyterLab and one browser for all browser tests; each test opens a notebook of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.support import lab


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    root: Path = tmp_path_factory.mktemp("lab")
    template = "http://127.0.0.1:9/#/experiments/{experiment_id}/runs/{run_id}"
    environment = {"SERVERLESS_GPU_MLFLOW_UI_URL": template, "SERVERLESS_GPU_ACCELERATOR": "cpu"}
    with lab.lab_server(root, **environment) as running:
        yield running


@pytest.fixture(scope="session")
def shared_page() -> Iterator[Page]:
    executable = lab.chromium()
    if executable is None:
        pytest.skip("no chromium here")
    with lab.browser_page(executable) as page:
        yield page


@pytest.fixture
def notebook(shared_page: Page, server: lab.Server) -> Iterator[lab.Notebook]:
    opened = lab.new_notebook(shared_page, server)
    yield opened
    opened.command("notebook:shutdown-kernel")
