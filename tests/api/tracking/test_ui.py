"""The link to a local store: it opens, is shared, and costs and leaves nothing."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from serverless_gpu.tracking import ui
from serverless_gpu.tracking.ui import Uis, server_environment

from .support import LIMIT_S, PYTHONPATH, ROOT, Notebook, info_of, wait_until

#: A server in place of MLflow's: says who it is and which store it was given.
STAND_IN = f"""
import json, os, sys
sys.path.append({str(ROOT)!r})
from serverless_gpu.tracking.ui_server import serve
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "application/json")])
    store = os.environ["_SERVERLESS_GPU_MLFLOW_UI_STORE"]
    return [json.dumps([os.getpid(), store, environ["PATH_INFO"]]).encode()]
serve(int(sys.argv[1]), int(sys.argv[2]), application)
"""
COMMAND = (sys.executable, "-c", STAND_IN)
needs_full_mlflow = pytest.mark.skipif(
    not ui.available(), reason="MLflow's UI needs the full mlflow package, see the extra [ui]"
)


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("SERVERLESS_GPU_MLFLOW_UI_URL", raising=False)
    return tmp_path


@pytest.fixture
def uis() -> Iterator[Uis]:
    made = Uis(COMMAND)
    yield made
    made.close()


def get(port: int | None, path: str = "/") -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT_S) as answer:
        body: bytes = answer.read()
        return body


def visit(port: int | None) -> tuple[int, str]:
    """The server's pid, and its store."""
    pid, store, _path = json.loads(get(port))
    return pid, store


def has_ended(pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([pidfd], [], [], LIMIT_S)[0], f"the server {pid} has not ended"
    os.close(pidfd)


def test_the_first_visitor_starts_the_server_and_the_next_finds_it(uis: Uis) -> None:
    port = uis.port("sqlite:////x/a.db")
    first = visit(port)
    assert first[1] == "sqlite:////x/a.db"
    assert visit(port) == first
    assert uis.port("sqlite:////x/a.db") == port
    assert uis.port("sqlite:////x/b.db") != port


def test_two_notebooks_share_a_server_and_the_second_takes_over_its_port() -> None:
    first, second = Uis(COMMAND), Uis(COMMAND)
    port = first.port("sqlite:////x/a.db")
    assert second.port("sqlite:////x/a.db") == port
    pid, _ = visit(port)
    first.close()
    has_ended(pid)
    del first

    def taken_over() -> int | None:
        try:
            return visit(port)[0]
        except OSError:
            return None

    successor = wait_until(taken_over, "the second notebook listens")
    assert successor != pid
    second.close()
    has_ended(successor)


def test_a_store_keeps_its_port_from_one_notebook_to_the_next(uis: Uis) -> None:
    uri = "sqlite:////x/a.db"
    before = Uis(COMMAND)
    port = before.port(uri)
    before.close()
    assert uis.port(uri) == port


def test_a_port_that_is_taken_is_left_to_its_owner(uis: Uis) -> None:
    import socket

    uri = "sqlite:////x/a.db"
    with socket.create_server(("127.0.0.1", ui._first_port(uri))) as other:
        port = uis.port(uri)
        assert port != other.getsockname()[1]
        assert visit(port)[1] == uri


def test_a_server_ends_with_the_process_that_started_it(runtime_folder: Path) -> None:
    script = (
        "import sys; from serverless_gpu.tracking.ui import Uis;"
        f"uis = Uis((sys.executable, '-c', {STAND_IN!r}));"
        "print(uis.port('sqlite:////x/a.db'), flush=True); sys.stdin.read()"
    )
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH, "XDG_RUNTIME_DIR": str(runtime_folder)}
    notebook = subprocess.Popen(
        [sys.executable, "-c", script], env=environ, stdin=-1, stdout=-1, text=True
    )
    assert notebook.stdout is not None
    pid, _ = visit(int(notebook.stdout.readline()))
    notebook.kill()
    notebook.communicate(timeout=LIMIT_S)
    has_ended(pid)


def test_a_server_that_nobody_visits_ends_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVERLESS_GPU_MLFLOW_UI_IDLE", "0.2")
    uis = Uis(COMMAND)
    port = uis.port("sqlite:////x/a.db")
    pid, _ = visit(port)
    has_ended(pid)
    assert visit(port)[0] != pid
    uis.close()


def test_a_server_that_cannot_start_says_why_to_the_visitor() -> None:
    uis = Uis((sys.executable, "-c", "raise SystemExit('no such store')"))
    with pytest.raises(urllib.error.HTTPError) as error:
        get(uis.port("sqlite:////x/a.db"))
    assert error.value.code == 503
    assert b"no such store" in error.value.read()
    uis.close()


def test_a_folder_of_somebody_else_is_not_used(runtime_folder: Path, uis: Uis) -> None:
    shared = runtime_folder / f"serverless-gpu-{os.getuid()}"
    shared.mkdir()
    shared.chmod(0o777)
    assert visit(uis.port("sqlite:////x/a.db"))[1] == "sqlite:////x/a.db"
    assert list(shared.iterdir()) == []


def test_behind_a_proxy_its_host_is_let_in_unless_the_user_says_who_is() -> None:
    variable = "SERVERLESS_GPU_MLFLOW_UI_URL"
    template = {variable: "https://hub.org:8000/proxy/{port}/#/{run_id}"}
    proxied = server_environment("u", template)
    assert "hub.org:8000" in proxied["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert proxied["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] == "https://hub.org:8000"
    chosen = server_environment("u", {**template, "MLFLOW_SERVER_ALLOWED_HOSTS": "a"})
    assert chosen["MLFLOW_SERVER_ALLOWED_HOSTS"] == "a"
    assert "MLFLOW_SERVER_ALLOWED_HOSTS" not in server_environment("u", {variable: "/p/{port}"})


@needs_full_mlflow
def test_the_link_of_a_run_opens_mlflows_page_and_finds_the_run(notebook: Notebook) -> None:
    info = info_of(notebook.begin("to be seen"))
    assert info.url is not None
    port = int(info.url.split(":")[2].split("/")[0])
    assert info.url.endswith(f"/#/experiments/{info.experiment_id}/runs/{info.run_id}")
    assert b"<title>MLflow</title>" in get(port)
    answer = json.loads(get(port, f"/ajax-api/2.0/mlflow/runs/get?run_id={info.run_id}"))
    assert answer["run"]["info"]["run_name"] == "to be seen"
    tracker = notebook.trackers[0]
    tracker.kill()
    tracker.wait()

    def refused() -> bool:
        try:
            get(port)
        except OSError:
            return True
        return False

    wait_until(refused, "the UI ends with the tracker")


def test_without_mlflows_ui_there_is_the_command_that_brings_it(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serverless_gpu.tracking.url import open_command, run_url

    assert run_url("sqlite:////x/a.db", "1", "r", port=lambda uri: None) is None
    command = open_command("sqlite:////x/a b.db", with_ui=False)
    expected = "mlflow ui --backend-store-uri 'sqlite:////x/a b.db'"
    assert command == f"pip install 'serverless-gpu-kernel[ui]' && {expected}"
    monkeypatch.setenv("SERVERLESS_GPU_MLFLOW_UI_URL", "off")
    info = info_of(notebook.begin())
    assert info.url is None
    assert str(info.open_command).endswith(f"mlflow ui --backend-store-uri {info.tracking_uri}")
