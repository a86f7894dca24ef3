"""What the product attaches to a run: what was called, with what, where; and no secret."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from mlflow import MlflowClient

from serverless_gpu import accelerator
from serverless_gpu.tracking import attachments, system
from serverless_gpu.tracking.facts import arguments_text, call_tags
from serverless_gpu.tracking.system import Sampler, interval
from tests.support.fake_gpus import Machine

from .support import LIMIT_S, Notebook, RankFailed, info_of, wait_until
from .test_semantics import all_runs


def described(environ: dict[str, str] | None = None, **values: Any) -> str:
    return arguments_text(list(values), list(values.values()), environ or {})


def test_arguments_are_described_shortly_and_without_their_own_repr() -> None:
    class Model:
        def __repr__(self) -> str:
            raise AssertionError("slow, long or secret")

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("as nested tensors have it")

    assert described(lr=0.1, name="a", n=None) == "lr=0.1, name='a', n=None"
    assert described(x=torch.ones(8, 3), y=numpy.ones(2)) == (
        "x=Tensor(8, 3) float32, y=ndarray(2) float64"
    )
    assert described(m=Model(), f=len) == "m=Model, f=len"
    assert described(c={"lr": [1, 2]}, many=range(9)) == "c={'lr': [1, 2]}, many=range"
    assert described(many=list(range(9))) == "many=[0, 1, 2, 3, … 9 in all]"
    assert len(described(text="x" * 10_000)) < 100
    assert len(described(**{f"a{n}": "x" * 50 for n in range(100)})) == 500


@pytest.mark.parametrize(
    "values",
    [
        {"token": "tok_fake_1234"},
        {"hf_token": "tok_fake_1234"},
        {"config": {"password": "tok_fake_1234"}},
        {"config": ["tok_fake_1234"]},
        {"x": "Bearer tok_fake_1234"},
        {"x": "hf_tok_fake_1234"},
    ],
)
def test_secrets_among_arguments_are_hidden(values: dict[str, Any]) -> None:
    environ = {"MLFLOW_TRACKING_TOKEN": "tok_fake_1234"}
    text = described(environ, **values)
    assert "tok_fake" not in text
    assert "***" in text


def test_a_call_tells_its_function_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/ada/nets.ipynb")
    assert call_tags("train", 8, "H100", "lr=1") == {
        "mlflow.source.name": "/home/ada/nets.ipynb",
        "mlflow.source.type": "NOTEBOOK",
        "serverless_gpu.function": "train",
        "serverless_gpu.ranks": "8 x H100",
        "serverless_gpu.arguments": "lr=1",
    }


def test_a_run_has_commit_packages_and_machine(notebook: Notebook) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    run = notebook.begin()
    info = info_of(run)
    run.end("FINISHED", timeout=LIMIT_S)
    [made] = all_runs()
    assert made.data.tags["mlflow.source.git.commit"] == git("rev-parse", "HEAD")
    facts = json.loads(Path(info.artifact_uri, "serverless_gpu", "environment.json").read_text())
    assert facts["packages"]["torch"] == torch.__version__
    assert facts["machine"]["cores"] >= 1
    assert facts["gpus"]["state"] == accelerator.machine().state


def test_logs_of_ranks_are_attached_large_ones_compressed(
    notebook: Notebook, tmp_path: Path
) -> None:
    logs = tmp_path / "call-1"
    logs.mkdir()
    (logs / "rank-0.log").write_text("line\n")
    (logs / "rank-1.log").write_text("x" * (attachments.COMPRESS_ABOVE + 1))
    (logs / "rank-2.log").write_text("")
    run = notebook.begin()
    run.log_folder(str(logs), "logs")
    run.log_folder(str(tmp_path / "no such folder"), "logs")
    run.end("FINISHED", timeout=LIMIT_S)
    assert run.error is None
    attached = Path(info_of(run).artifact_uri, "logs")
    assert sorted(path.name for path in attached.iterdir()) == ["rank-0.log", "rank-1.log.gz"]
    assert len(gzip.decompress((attached / "rank-1.log.gz").read_bytes())) == (
        attachments.COMPRESS_ABOVE + 1
    )


def test_of_an_endless_log_beginning_and_end_are_attached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachments, "COMPRESS_ABOVE", 10)
    monkeypatch.setattr(attachments, "KEPT_OF_LOG", 5)
    log = tmp_path / "rank-0.log"
    log.write_text("begin" + "." * 1000 + "enden")
    text = gzip.decompress(attachments._compressed(log.name, log, tmp_path).read_bytes()).decode()
    assert text == "begin\n… 1,000 bytes left out …\nenden"


def test_system_metrics_name_the_gpu_and_its_rank(machine: Machine) -> None:
    machine("8xH100", visible="6,1")
    values = Sampler().sample()
    assert 0 < values["system/system_memory_usage_percentage"] < 100
    gpus = {name for name in values if "memory_usage_percentage" in name and "gpu" in name}
    assert gpus == {
        "system/gpu_6_rank_0_memory_usage_percentage",
        "system/gpu_1_rank_1_memory_usage_percentage",
    }


def test_system_metrics_are_sampled_as_the_user_says() -> None:
    assert interval({}) == system.INTERVAL_S
    assert interval({"MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL": "3"}) == 3
    assert interval({"MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false"}) is None


def test_a_run_gets_system_metrics_once_for_the_machine(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "1")
    run = notebook.begin()
    info = info_of(run)
    client = MlflowClient(tracking_uri=info.tracking_uri)
    key = "system/system_memory_usage_percentage"
    wait_until(lambda: client.get_metric_history(info.run_id, key), "a sample is written")
    run.end("FINISHED", timeout=LIMIT_S)


def log_one() -> None:
    import mlflow

    mlflow.log_metric("m", 1.0)
    mlflow.log_metrics({"n": 2.0})


def test_keys_carry_the_rank_if_that_is_asked_for(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVERLESS_GPU_MLFLOW_PER_RANK", "1")
    notebook.call(2, log_one)
    [run] = all_runs()
    assert set(run.data.metrics) == {"rank0/m", "rank0/n", "rank1/m", "rank1/n"}


def test_a_bad_value_still_raises_with_ranks_in_keys(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> None:
        import mlflow

        mlflow.log_metric("m", "x")  # type: ignore[arg-type]

    monkeypatch.setenv("SERVERLESS_GPU_MLFLOW_PER_RANK", "1")
    with pytest.raises(RankFailed):
        notebook.call(1, train)


def test_tokens_are_nowhere_in_what_the_product_writes(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """C-073."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "tok_fake_1234")

    def train(token: str) -> str | None:
        return os.environ.get("MLFLOW_TRACKING_TOKEN")

    run = notebook.begin(**{"serverless_gpu.arguments": described(token="tok_fake_1234")})
    assert notebook.run(run, notebook.ranks(1), train, "tok_fake_1234") == ["tok_fake_1234"]
    run.end("FINISHED", timeout=LIMIT_S)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 1
    assert [path for path in written if b"tok_fake" in path.read_bytes()] == []
