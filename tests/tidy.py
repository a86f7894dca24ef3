"""clang-tidy over our own sources, with results kept by content.

A source that was clean is not looked at again while neither it, nor a header of ours that it
includes, nor the configuration changes. The cache holds no paths, so that it serves every clone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CLANG_TIDY = "clang-tidy-14"
PARALLEL = 2
# The compile commands are g++'s, with warnings that clang does not know.
NOT_CLANGS = ("--extra-arg=-Wno-unknown-warning-option",)
LAYERS = ("kernel", "magics", "runtime")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def check_all(
    root: Path, build: Path, write: Callable[[str], None], deadline: float
) -> tuple[int, int]:
    """Checks each source of ours that `build` compiles. Returns how many are clean and not.

    `write` gets the findings. `deadline` is in time.monotonic() seconds.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sgpu-tidy"
    cache.mkdir(parents=True, exist_ok=True)
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    sources = sorted({Path(entry["file"]).resolve() for entry in commands})
    ours = [path for path in sources if any(path.is_relative_to(root / layer) for layer in LAYERS)]

    def check(source: Path) -> bool:
        mark = cache / _key(root, source)
        if mark.exists():
            return True
        try:
            done = subprocess.run(
                [CLANG_TIDY, "--quiet", *NOT_CLANGS, "-p", str(build), str(source)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=max(0.0, deadline - time.monotonic()),
            )
        except subprocess.TimeoutExpired:
            write(f"{source.relative_to(root)}: not done in time\n")
            return False
        if done.returncode == 0:
            mark.touch()
            return True
        write(f"{source.relative_to(root)}:\n{done.stdout}{done.stderr}\n")
        return False

    with ThreadPoolExecutor(PARALLEL) as pool:
        clean = sum(pool.map(check, ours))
    return clean, len(ours) - clean


def _key(root: Path, source: Path) -> str:
    digest = hashlib.sha256((root / ".clang-tidy").read_bytes())
    for path in sorted(_with_headers(root, source)):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _with_headers(root: Path, source: Path) -> set[Path]:
    """The source and every header of ours that it includes, however indirectly."""
    found: set[Path] = set()
    todo = [source]
    while todo:
        path = todo.pop()
        if path in found or not path.exists():
            continue
        found.add(path)
        names = INCLUDE.findall(path.read_text(encoding="utf-8"))
        todo += [root / name for name in names] + [path.parent / name for name in names]
    return found
