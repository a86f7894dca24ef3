"""The `serverless-gpu` command in this process: its usage and its errors."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from serverless_gpu import cli


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    version = metadata.version("serverless-gpu-kernel")
    assert capsys.readouterr().out == f"serverless-gpu {version}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required: COMMAND"),
        (["instal"], "invalid choice: 'instal'"),
        (["install", "--user", "--prefix", "p"], "not allowed with argument --user"),
        (["install", "--sys-prefix", "--prefix", "p"], "not allowed with argument --sys-prefix"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_user_is_the_default_and_goes_to_the_users_jupyter_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    assert cli.main(["install"]) == 0
    spec = tmp_path / "kernels" / "serverless-gpu" / "kernel.json"
    assert json.loads(spec.read_text(encoding="utf-8"))["argv"][0] == sys.executable
    assert str(spec.parent) in capsys.readouterr().out


def test_installing_again_replaces_what_was_there(tmp_path: Path) -> None:
    arguments = ["install", "--prefix", str(tmp_path)]
    assert cli.main(arguments) == 0
    leftover = tmp_path / "share" / "jupyter" / "kernels" / "serverless-gpu" / "old.svg"
    leftover.touch()
    assert cli.main(arguments) == 0
    assert not leftover.exists()


def test_a_prefix_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    occupied = tmp_path / "file"
    occupied.touch()
    assert cli.main(["install", "--prefix", str(occupied)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("serverless-gpu: ")
    assert str(occupied) in error
    assert error.count("\n") == 1


def test_without_jupyter_client_the_error_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jupyter_client.kernelspec", None)
    assert cli.main(["install"]) == 1
    error = capsys.readouterr().err
    assert "jupyter_client" in error
    assert error.count("\n") == 1


def test_without_an_installed_package_the_error_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "DISTRIBUTION", "serverless-gpu-kernel-not-here")
    assert cli.main(["install"]) == 1
    assert "serverless-gpu-kernel-not-here is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("not ours\n", "is no file of kept MLflow data"),
        ('{"spool": 99, "uri": "u"}\n', "was kept by a newer version (format 99)"),
    ],
)
def test_replaying_what_is_no_spool_is_one_line(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "spool.jsonl"
    if text is not None:
        file.write_text(text)
    assert cli.main(["mlflow-replay", str(file)]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
