"""The installed wheel: its programs run, it needs no other library, and it goes without a trace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import COMMAND_TIMEOUT_S, DISTRIBUTION, Environment, run

# The first test waits for the build.
pytestmark = pytest.mark.timeout(COMMAND_TIMEOUT_S)

# What every Linux has that can run a Python with compiled modules.
SYSTEM_LIBRARIES = (
    "ld-linux",
    "libc.so",
    "libdl.so",
    "libgcc_s.so",
    "libm.so",
    "libpthread.so",
    "libresolv.so",
    "librt.so",
    "libstdc++.so",
    "linux-vdso.so",
)
RUN_A_CELL = """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="serverless-gpu", startup_timeout=60)
try:
    reply = client.execute_interactive("import sys; print(sys.executable)", timeout=60)
    assert reply["content"]["status"] == "ok", reply["content"]
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
"""


def binaries(environment: Environment) -> list[Path]:
    return [*environment.package.rglob("*.so"), environment.package / "serverless-gpu-guard"]


def test_the_binaries_need_only_libraries_that_every_system_has(installed: Environment) -> None:
    for binary in binaries(installed):
        needed = [Path(line.split()[0]).name for line in run("ldd", binary).splitlines()]
        others = [name for name in needed if not name.startswith(SYSTEM_LIBRARIES)]
        assert others == [], binary.name


def test_a_kernel_runs_in_the_python_of_its_environment(installed: Environment) -> None:
    output = run(installed.python, "-c", RUN_A_CELL, cwd=installed.prefix)
    assert output.splitlines()[-1] == str(installed.python)


def test_the_binaries_name_no_folder_to_search_for_libraries(installed: Environment) -> None:
    for binary in binaries(installed):
        assert "RUNPATH" not in run("readelf", "--dynamic", binary), binary.name


def test_the_guard_without_arguments_says_how_to_use_it(installed: Environment) -> None:
    guard = installed.package / "serverless-gpu-guard"
    done = subprocess.run([guard], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")


@pytest.mark.parametrize("module", ["_core", "_kernel"])
def test_an_extension_module_is_imported_from_the_wheel(
    installed: Environment, module: str
) -> None:
    script = f"from serverless_gpu import {module}; print({module}.__file__)"
    where = run(installed.python, "-c", script, cwd=installed.prefix).splitlines()[-1]
    assert Path(where).parent == installed.package


def test_the_command_writes_a_kernelspec_with_an_absolute_interpreter(
    installed: Environment, tmp_path: Path
) -> None:
    command = installed.prefix / "bin" / "serverless-gpu"
    run(command, "install", "--prefix", tmp_path, cwd=tmp_path)
    folder = tmp_path / "share" / "jupyter" / "kernels" / "serverless-gpu"
    spec = json.loads((folder / "kernel.json").read_text(encoding="utf-8"))
    assert spec["argv"][0] == str(installed.python)
    assert spec["display_name"] == "Serverless GPU"
    packaged = installed.prefix / "share" / "jupyter" / "kernels" / "serverless-gpu"
    assert {path.name for path in folder.iterdir()} == {path.name for path in packaged.iterdir()}


def test_uninstalling_leaves_nothing(wheel: Path, tmp_path: Path) -> None:
    environment = Environment.create(tmp_path / "venv")
    before = environment.files()
    environment.pip("install", "--no-deps", "--no-index", wheel)
    assert environment.files() > before
    run(environment.python, "-c", "import serverless_gpu.cli", cwd=tmp_path)
    environment.pip("uninstall", "--yes", DISTRIBUTION)
    assert environment.files() == before


def test_the_environment_of_dev_has_the_kernelspec() -> None:
    spec = Path(sys.prefix) / "share" / "jupyter" / "kernels" / "serverless-gpu" / "kernel.json"
    assert json.loads(spec.read_text(encoding="utf-8"))["display_name"] == "Serverless GPU"


def test_the_modules_show_nothing_but_what_python_calls(installed: Environment) -> None:
    """What they show the loader shares with torch and others, whatever version theirs is."""
    for module in installed.package.rglob("*.so"):
        shown = run("nm", "--dynamic", "--defined-only", "--format=posix", module).split("\n")
        names = [line.split()[0] for line in shown if line]
        assert names == [f"PyInit_{module.name.partition('.')[0]}"]
