"""JupyterLab in a headless browser, for tests that look at what a person sees."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect, sync_playwright

#: Seconds; a loaded machine with two cores imports torch in the background meanwhile.
START_LIMIT = 90.0
CELL_LIMIT_MS = 120_000

expect.set_options(timeout=CELL_LIMIT_MS)

SCREENS = Path(__file__).resolve().parents[2] / "build" / "test-logs" / "screens"


@dataclass(frozen=True)
class Server:
    url: str
    root: Path
    log: Path


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def lab_server(root: Path, **environment: str) -> Iterator[Server]:
    """JupyterLab on `root`, ended with all its kernels at the end."""
    port = _free_port()
    log = root / "lab.log"
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--ServerApp.port={port}", "--ServerApp.token=", "--ServerApp.password="]
    command += [f"--ServerApp.root_dir={root}", "--expose-app-in-browser"]
    command += [
        "--LabApp.news_url=",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    env = {**os.environ, "JUPYTER_CONFIG_DIR": str(root / ".config"), **environment}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)
    try:
        _wait_for(f"http://127.0.0.1:{port}/api", process, log)
        yield Server(f"http://127.0.0.1:{port}/lab", root, log)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + START_LIMIT
    while time.monotonic() < limit:
        if process.poll() is not None:
            raise RuntimeError(f"JupyterLab ended at its start:\n{log.read_text()[-2000:]}")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.1)  # the server has no other way to say that it is up
    raise TimeoutError(f"JupyterLab did not answer at {url} within {START_LIMIT:.0f} s")


def chromium() -> str | None:
    return next((p for n in ("chromium", "chromium-browser") if (p := shutil.which(n))), None)


@contextlib.contextmanager
def browser_page(executable: str) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 1000})
        page.set_default_timeout(CELL_LIMIT_MS)
        yield page
        browser.close()


class Notebook:
    """The notebook that is open in the page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.outputs = page.locator(".jp-Notebook .jp-Cell-outputArea")

    def command(self, name: str) -> None:
        """Runs a command of JupyterLab and waits for it."""
        self.page.evaluate("name => window.jupyterapp.commands.execute(name)", name)

    def start_command(self, name: str) -> None:
        """Runs a command of JupyterLab that ends only after a dialog, or with the cell."""
        self.page.evaluate("name => { window.jupyterapp.commands.execute(name); }", name)

    def type_cell(self, source: str) -> None:
        """Replaces the text of the selected cell."""
        self.page.evaluate(
            "source => window.jupyterapp.shell.currentWidget.content.activeCell"
            ".model.sharedModel.setSource(source)",
            source,
        )

    def run(self, source: str, *, wait: bool = True) -> Any:
        """Runs `source` in the selected cell, selects the next one, returns the output area.

        Waits for a cell that still runs: one that is sent before an error has been told is aborted,
        as Jupyter's protocol wants it.
        """
        expect(self.page.locator(".jp-InputPrompt", has_text="[*]")).to_have_count(0)
        self.type_cell(source)
        index = int(
            self.page.evaluate(
                "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
            )
        )
        self.start_command("notebook:run-cell-and-select-next")
        cell = self.page.locator(".jp-Notebook .jp-CodeCell").nth(index)
        if wait:
            expect(cell.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]"))
        return cell.locator(".jp-Cell-outputArea")

    def screenshot(self, name: str) -> Path:
        SCREENS.mkdir(parents=True, exist_ok=True)
        path = SCREENS / f"{name}.png"
        self.page.screenshot(path=str(path))
        return path


def new_notebook(page: Page, server: Server, kernel: str = "Serverless GPU") -> Notebook:
    """Picks the kernel in the launcher, as a person does."""
    page.goto(server.url + "?reset", timeout=CELL_LIMIT_MS)
    page.locator('.jp-LauncherCard[data-category="Notebook"]', has_text=kernel).click()
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    expect(page.locator(".jp-Toolbar-kernelName")).to_have_text(kernel)
    expect(page.locator('.jp-NotebookPanel-toolbar [data-status="idle"]')).to_be_visible()
    return Notebook(page)
