"""Tracking as users meet it, in a kernel of its own: stores, experiments, nested runs, failures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tests.support import kernel_client
from tests.support.kernel_client import TestKernel
from tests.support.notebook import Notebook

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def kernel(spec: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestKernel]:
    """MLflow is on; templates make links for which nothing has to listen."""
    state = tmp_path_factory.mktemp("state")
    env = {
        "SERVERLESS_GPU_ACCELERATOR": "cpu",
        "SERVERLESS_GPU_MLFLOW": "always",
        "SERVERLESS_GPU_MLFLOW_UI_URL": "http://lab/{experiment_id}/{run_id}",
        "XDG_STATE_HOME": str(state),
        "MLFLOW_TRACKING_TOKEN": "tok_fake_1234",
    }
    with kernel_client.running(env, cwd=tmp_path_factory.mktemp("project")) as kernel:
        yield kernel


@pytest.fixture(scope="module")
def notebook(kernel: TestKernel) -> Notebook:
    return Notebook(kernel)


@pytest.fixture
def store(notebook: Notebook, tmp_path: Path) -> str:
    """A store of the test's own, chosen in the notebook."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    notebook.ok(f"import mlflow; mlflow.set_tracking_uri({uri!r}); mlflow.set_experiment('case')")
    return uri


def runs(uri: str) -> list[Any]:
    """All runs of the experiment "case", once none of them is running any more."""
    client = MlflowClient(tracking_uri=uri)
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        experiment = client.get_experiment_by_name("case")
        found = list(client.search_runs([experiment.experiment_id]))
        if all(run.info.status != "RUNNING" for run in found):
            return found
        time.sleep(0.05)  # the tracker ends runs after the cell
    raise AssertionError(f"still running: {[run.info.run_name for run in found]}")


def test_c008_one_run_for_a_call_and_its_link_leads_there(notebook: Notebook, store: str) -> None:
    run = notebook.run(
        """
        @distributed(gpus=4)
        def t(lr, token):
            import mlflow
            print("hello")
            with mlflow.start_run():
                mlflow.log_metric("loss", 1.0 / (1 + int(os.environ["RANK"])))
        t.distributed(0.1, token="tok_fake_1234")
        """
    )
    assert run.status == "ok"
    [made] = runs(store)
    assert f"http://lab/{made.info.experiment_id}/{made.info.run_id}" in str(run.messages)
    assert made.data.tags["serverless_gpu.arguments"] == "lr=0.1, token=***"
    assert made.data.tags["serverless_gpu.function"] == "t"
    attached = Path(made.info.artifact_uri)
    assert "def t(lr, token):" in (attached / "source.py").read_text()
    assert (attached / "logs" / "rank-3.log").read_text() == "hello\n"
    assert (attached / "serverless_gpu" / "environment.json").exists()


def test_the_link_of_a_later_call_is_there_before_its_ranks_begin(
    notebook: Notebook, store: str
) -> None:
    notebook.ok("%%distributed --gpus 2 --name first\npass")
    run = notebook.run("%%distributed --name second\nprint('begun')")
    kinds = [message["msg_type"] for message in run.messages]
    status = run.messages[kinds.index("display_data")]
    assert kinds.index("display_data") < kinds.index("stream")
    second = next(run for run in runs(store) if run.info.run_name == "second")
    link = f"http://lab/{second.info.experiment_id}/{second.info.run_id}"
    assert f"MLflow run second: {link}" in status["content"]["data"]["text/plain"]


def test_c025_store_and_experiment_of_the_notebook_hold_in_ranks(
    notebook: Notebook, store: str
) -> None:
    notebook.ok(
        """
        with mlflow.start_run() as run:
            @distributed(gpus=2)
            def t():
                import mlflow
                if os.environ["RANK"] == "0": mlflow.log_metric("m", 1.0)
                return mlflow.get_tracking_uri()
            assert t.distributed() == [mlflow.get_tracking_uri()] * 2
        assert not os.path.exists("mlflow.db")
        # "mlruns" has the files of this store's runs; a store of its own it is not.
        import pathlib; assert not list(pathlib.Path("mlruns").glob("**/meta.yaml"))
        """
    )
    parent, child = sorted(runs(store), key=lambda run: run.info.start_time)
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.metrics == {"m": 1.0}
    other = store.replace("mlflow.db", "other.db")
    notebook.ok(f"mlflow.set_tracking_uri({other!r}); assert t.distributed() == [{other!r}] * 2")


def test_c032_a_store_that_does_not_exist_yet(notebook: Notebook, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/fresh.db"
    notebook.ok(
        f"""
        import mlflow; mlflow.set_tracking_uri({uri!r})
        @distributed(gpus=8)
        def t():
            import mlflow
            mlflow.set_experiment("case")
            with mlflow.start_run(nested=True):
                for i in range(50): mlflow.log_metric("m", i, step=i)
        t.distributed()
        """
    )
    [nested] = runs(uri)
    history = MlflowClient(tracking_uri=uri).get_metric_history(nested.info.run_id, "m")
    assert len(history) == 8 * 50


def test_c052_a_rerun_after_a_failure_works(notebook: Notebook, store: str) -> None:
    notebook.ok(
        """
        @distributed(gpus=2)
        def t(fail):
            import mlflow
            if os.environ["RANK"] == "0":
                mlflow.start_run(); mlflow.log_param("p", 1)
                if fail: raise RuntimeError("x")
                mlflow.end_run()
        """
    )
    assert "RuntimeError: x" in notebook.error("t.distributed(True)")
    notebook.ok("t.distributed(False)")
    good, bad = sorted(runs(store), key=lambda run: -run.info.start_time)
    assert (good.info.status, bad.info.status) == ("FINISHED", "FAILED")
    assert bad.data.tags["serverless_gpu.failed_rank"] == "0"
    assert "RuntimeError: x" in bad.data.tags["serverless_gpu.error"]


def test_a_deadline_is_told_in_the_run(notebook: Notebook, store: str) -> None:
    notebook.ok(
        """
        @distributed(gpus=2, timeout=0.5)
        def t(): time.sleep(60)
        try: t.distributed()
        except TimeoutError: pass
        """
    )
    [late] = runs(store)
    assert late.info.status == "KILLED"
    told = late.data.tags["serverless_gpu.error"]
    assert told.startswith("the call did not end within 0.5 s") and "[0-1] in t at" in told


def test_c053_every_rank_knows_the_run(notebook: Notebook, store: str) -> None:
    notebook.ok(
        """
        @distributed(gpus=3)
        def t():
            import mlflow
            rid = mlflow.active_run().info.run_id
            mlflow.MlflowClient().log_text(rid, "hello", f"rank{os.environ['RANK']}.txt")
            return rid
        with mlflow.start_run() as run: ids = t.distributed()
        assert len(set(ids)) == 1
        paths = [a.path for a in mlflow.MlflowClient().list_artifacts(ids[0])]
        assert {"rank0.txt", "rank1.txt", "rank2.txt"} <= set(paths), paths
        """
    )


def test_c061_nested_runs_leave_their_parent_as_it_is(notebook: Notebook, store: str) -> None:
    notebook.ok(
        """
        before = dict(os.environ)
        @distributed(gpus=2)
        def t():
            import mlflow
            with mlflow.start_run(nested=True, run_name="child" + os.environ["RANK"]) as r:
                mlflow.log_param("rank", os.environ["RANK"]); return r.info.run_id
        with mlflow.start_run(run_name="parent") as p:
            a = t.distributed(); b = t.distributed()
            assert mlflow.active_run().info.run_id == p.info.run_id
        assert len({*a, *b}) == 4
        assert dict(os.environ) == before
        """
    )
    [parent] = [run for run in runs(store) if run.info.run_name == "parent"]
    assert parent.data.params == {}


def test_c062_ranks_cannot_end_the_notebooks_run(notebook: Notebook, store: str) -> None:
    notebook.ok(
        """
        run = mlflow.start_run()
        @distributed(gpus=2)
        def t(bad):
            import mlflow
            mlflow.end_run("FAILED")
            if bad and os.environ["RANK"] == "1": os._exit(1)
        t.distributed(False)
        try: t.distributed(True)
        except RuntimeError as e: print(type(e).__name__)
        assert mlflow.get_run(run.info.run_id).info.status == "RUNNING"
        mlflow.log_metric("after", 1.0); mlflow.end_run()
        ended = mlflow.get_run(run.info.run_id)
        assert ended.info.status == "FINISHED" and ended.data.metrics == {"after": 1.0}
        """
    )


def test_cells_are_tracked_as_calls_are(notebook: Notebook, store: str) -> None:
    notebook.ok("%%distributed --gpus 2 --name mine\nimport mlflow; mlflow.log_metric('m', 1.0)")
    notebook.ok("%%distributed --mlflow lazy\nnothing = 'logged'")
    notebook.ok("%%distributed --mlflow off\n1 + 1")
    [made] = runs(store)
    assert (made.info.run_name, made.info.status) == ("mine", "FINISHED")
    assert made.data.metrics == {"m": 1.0}
    source = (Path(made.info.artifact_uri) / "source.py").read_text()
    assert source.strip() == "import mlflow; mlflow.log_metric('m', 1.0)"
    notebook.ok("import serverless_gpu; serverless_gpu.session().stop()")


def test_a_store_that_is_away_is_one_line_in_the_status(notebook: Notebook) -> None:
    run = notebook.run(
        """
        import mlflow; mlflow.set_tracking_uri("http://127.0.0.1:9")
        @distributed(gpus=2)
        def t():
            import mlflow
            with mlflow.start_run(): mlflow.log_metric("m", 1.0)
            return "trained"
        assert t.distributed() == ["trained"] * 2
        """
    )
    assert run.status == "ok"
    shown = str([m["content"]["data"]["text/plain"] for m in run.messages if _is_status(m)][-1])
    assert "MLflow: http://127.0.0.1:9: Connection refused; kept until the store is back" in shown
    notebook.ok("mlflow.set_tracking_uri(None)")


def _is_status(message: dict[str, Any]) -> bool:
    return message["msg_type"] in ("display_data", "update_display_data")


def test_c073_no_token_is_written_anywhere(notebook: Notebook, store: str, kernel: Any) -> None:
    notebook.ok(
        """
        @distributed(gpus=2)
        def f():
            import mlflow
            mlflow.log_metric("m", 1.0)
            if os.environ["RANK"] == "1": raise RuntimeError("boom")
            return os.environ["MLFLOW_TRACKING_TOKEN"]
        from serverless_gpu import pool
        try: f.distributed()
        except RuntimeError as error:
            assert error.results == {0: "tok_fake_1234"} or error.results[0] == "tok_fake_1234"
            assert "tok_fake" not in str(error)
        places = [pool.running().folder, os.getcwd(), os.environ["XDG_STATE_HOME"]]
        import pathlib
        files = [p for place in places for p in pathlib.Path(place).rglob("*") if p.is_file()]
        assert files
        assert not [p for p in files if b"tok_fake" in p.read_bytes()]
        """
    )
    assert [run.info.status for run in runs(store)] == ["FAILED"]


def test_mlflow_skinny_is_enough_and_the_ui_is_one_line(spec: None, tmp_path: Path) -> None:
    folder = str(Path(__file__).parents[1] / "support" / "skinny")
    env = {"PYTHONPATH": folder, "SERVERLESS_GPU_MLFLOW": "always", "XDG_STATE_HOME": str(tmp_path)}
    with kernel_client.running({**env, "SERVERLESS_GPU_ACCELERATOR": "cpu"}, cwd=tmp_path) as own:
        notebook = Notebook(own)
        run = notebook.run(
            """
            %%distributed --gpus 2 --name small
            import importlib.metadata, importlib.util, mlflow
            try: importlib.metadata.version("mlflow"); raise SystemExit("full MLflow is here")
            except importlib.metadata.PackageNotFoundError: pass
            try: import flask; raise SystemExit("what the UI needs is here")
            except ModuleNotFoundError: mlflow.log_metric("m", 1.0)
            mlflow.log_dict({"a": 1}, "a.json")
            """
        )
        assert run.status == "ok", Notebook.shown(run)
        said = run.messages[-2]["content"]["data"]["text/plain"]
        command = f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/mlflow.db"
        assert f"to see it: pip install 'serverless-gpu-kernel[ui]' && {command}" in said
        notebook.ok("import serverless_gpu; serverless_gpu.session().stop()")
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    [experiment] = client.search_experiments(filter_string=f"name = '{tmp_path.name}'")
    [made] = client.search_runs([experiment.experiment_id])
    assert (made.info.run_name, made.data.metrics) == ("small", {"m": 1.0})
    assert "a.json" in [one.path for one in client.list_artifacts(made.info.run_id)]
