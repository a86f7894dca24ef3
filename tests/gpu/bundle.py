"""Packs what a GPU machine may lack and cannot fetch, for tests/gpu/run.sh: `./dev gpu-bundle`.

The libraries and headers that the kernel is linked with, as archives, from this system's own
packages; and wheels for the Python of that machine. torch, numpy and CMake are not in it: a machine
with GPUs has them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "build" / "gpu-bundle"
LIMIT_MIB = 60  # of the bundle and the sources together

#: Debian's packages, as ./dev installs them, and what their CMake files look for.
SYSTEM = (
    *("xeus-dev", "libxeus6", "xtl-dev", "cppzmq-dev", "libzmq3-dev", "nlohmann-json3-dev"),
    *("libssl-dev", "uuid-dev", "libsodium-dev", "libpgm-dev", "libnorm-dev", "libbsd-dev"),
    *("libmd-dev", "zlib1g-dev"),
)
WHEELS = (
    *("ipython", "jupyter_client", "nbclient", "nbconvert", "nbformat", "pyzmq", "comm"),
    *("matplotlib-inline", "mlflow-skinny", "sqlalchemy", "alembic", "cloudpickle", "psutil"),
    *("pytest", "pytest-timeout", "pybind11>=3", "scikit-build-core"),
)
#: Of DeepSpeed there are only sources, which compile nothing unless they are asked to.
FROM_SOURCES = ("deepspeed",)
ITS_NEEDS = ("hjson", "py-cpuinfo", "einops", "msgpack", "tqdm")
#: What Python itself has from 3.11 on.
BACKPORTS = ("exceptiongroup", "tomli")
#: A second copy of these would hide the ones that belong to that machine's driver.
NOT_OURS = ("torch", "numpy", "triton", "nvidia")
#: glibc 2.28 and older, as pip spells it.
PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2_12", "2_5")


def main() -> int:
    options = _options()
    TARGET.mkdir(parents=True, exist_ok=True)
    for old in TARGET.iterdir():
        old.unlink()
    _pack_wheels(options.python)
    count = _pack_system()
    (TARGET / "python").write_text(options.python + "\n")
    bundle, sources = _size(TARGET.iterdir()), _size(_sources())
    wheels = len(list(TARGET.glob("*.whl")))
    print(f"{TARGET}: {wheels} wheels for Python {options.python}, {count} files of the system")
    print(f"{bundle:.1f} MiB, with the sources {bundle + sources:.1f} of {LIMIT_MIB} MiB")
    if bundle + sources > LIMIT_MIB:
        print("That is too much: leave something out.", file=sys.stderr)
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev gpu-bundle", description=__doc__)
    parser.add_argument("--python", default="3.12", help="version of that machine's Python")
    return parser.parse_args()


def _pack_wheels(python: str) -> None:
    """Downloads them for x86-64 and glibc of 2.28 or newer, with what they need."""
    wanted = [
        *WHEELS,
        *ITS_NEEDS,
        *(BACKPORTS if tuple(map(int, python.split("."))) < (3, 11) else ()),
    ]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp", "--dest", str(TARGET)]
    for glibc in PLATFORMS:
        command += ["--platform", f"manylinux_{glibc}_x86_64"]
    for old in ("manylinux2014", "manylinux2010", "manylinux1"):
        command += ["--platform", f"{old}_x86_64"]
    subprocess.run([*command, *wanted], check=True, timeout=600)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*build, "--wheel-dir", str(TARGET), *FROM_SOURCES],
        check=True,
        timeout=600,
        env={**os.environ, "DS_BUILD_OPS": "0"},
    )
    intruders = [w.name for w in TARGET.glob("*.whl") if w.name.lower().startswith(NOT_OURS)]
    if intruders:
        raise SystemExit(
            f"These belong to the GPU machine, and something here needs them: {intruders}"
        )


def _pack_system() -> int:
    """Packs `prefix.tar.gz`, laid out like /usr; the number of files in it."""
    files: dict[str, Path] = {}
    for package in SYSTEM:
        listed = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True)
        if listed.returncode != 0:
            raise SystemExit(
                f"The package {package} is not installed: the bundle is made of Debian's packages"
            )
        for line in listed.stdout.splitlines():
            path = Path(line)
            if line.startswith("/usr/") and path.is_file() and _is_needed(line):
                files[line.removeprefix("/usr/")] = path
    with tarfile.open(TARGET / "prefix.tar.gz", "w:gz", dereference=True) as archive:
        for name, path in sorted(files.items()):
            archive.add(path, name)
    return len(files)


def _is_needed(path: str) -> bool:
    """Headers, archives, what CMake reads of them; of shared libraries the one that xeus's CMake
    file insists on."""
    return (
        path.startswith("/usr/include/")
        or path.endswith(".a")
        or "/cmake/" in path
        or "/libxeus.so" in path
    )


def _sources() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / name for name in listed.stdout.splitlines()]


def _size(files: Iterable[Path]) -> float:
    """MiB, of those that are there."""
    return sum(f.stat().st_size for f in files if f.is_file()) / 2**20


if __name__ == "__main__":
    sys.exit(main())
