"""A notebook under pressure: a script that says line by line what became of its calls."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import scripts

CPU = {"SERVERLESS_GPU_ACCELERATOR": "cpu", "SERVERLESS_GPU_MLFLOW": "off"}

PREAMBLE = """
import os, signal, sys, time
import numpy as np
from serverless_gpu import distributed, pool

def attempt(name, call):
    try:
        print(name, call(), flush=True)
    except Exception as error:
        print(name, type(error).__name__, " | ".join(str(error).splitlines()), flush=True)

@distributed(gpus=2)
def fine():
    return int(os.environ["RANK"])

@distributed(gpus=8)
def eight(array):
    return float(array[0])
"""


def lines_of(code: str, folder: Path, before: str = "", **env: str) -> dict[str, str]:
    """Runs the code after the preamble, below `before`; by name what `attempt` said of it."""
    script = scripts.run(PREAMBLE + code, folder, before=before, **{**CPU, **env})
    assert script.code == 0, script.text
    return {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in script.lines if " " in line}


def as_another_user(program: str) -> str:
    """A shell command after which what follows is run by `program` and as a user who has no other
    processes, for whom the limits hold that root is above. It may read and write every file, since
    this Python may lie where only root can look. Skips where there is no other user to be had."""
    if os.geteuid() != 0 or not (shutil.which("setpriv") and shutil.which("prlimit")):
        pytest.skip("only root can become another user")
    files = "+dac_override,+dac_read_search"
    user = random.randrange(1 << 20, 1 << 30)
    return (
        f"exec setpriv --reuid {user} --clear-groups --inh-caps={files} --ambient-caps={files} "
        f'{program} "$@"'
    )


def mounted(folder: Path | str, size: str) -> str:
    """A shell command after which `folder` is an empty file system of that size, for what follows
    in the same shell only. Skips where nothing can be mounted."""
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("no mount namespace of one's own here")
    return (
        f"exec unshare -m sh -e -c 'mount -t tmpfs -o size={size} none {folder}; "
        'cd "$PWD"; exec "$@"\' sh "$@"'
    )
