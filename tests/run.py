"""Runs the tests by kind and prints one table; `./dev test` calls it in a finished environment.

A kind that fails does not stop the others. Each kind's whole output is build/test-logs/<kind>.log.
Compilers and analysers run beside the tests of processes, which wait more than they compute.
The last line is "N passed, N failed, N skipped"; the exit status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tidy
from kind_log import LOGS, ROOT, Log, kill_running

SHOWN_LOG_LINES = 60
CMAKE = os.environ.get("CMAKE", "cmake")
CTEST = str(Path(CMAKE).with_name("ctest")) if "/" in CMAKE else "ctest"
SANITIZED_LABELS = "^(unit|wire|fault)$"
#: Kinds that only compute. They run one after the other, beside the others and behind them.
COMPUTING = ("lint", "cpp", "asan", "tsan", "tidy")
PYTEST_KINDS = ("unit", "kernel", "api", "cases", "packaging", "browser", "examples", "gpu")


@dataclass(frozen=True)
class Outcome:
    """What a kind came to. `notes` say why something was skipped, or what went wrong."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    notes: tuple[str, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.notes + tuple(note for note in other.notes if note not in self.notes),
        )

    def counts(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclass(frozen=True)
class Row:
    kind: str
    outcome: Outcome
    seconds: float


def check(log: Log, *command: str) -> Outcome:
    """Runs a command that counts as one test."""
    return Outcome(passed=1) if log.run(*command) else Outcome(failed=1)


def count(cases: Sequence[ElementTree.Element]) -> Outcome:
    """Counts the cases of a JUnit report; the notes are why some were skipped."""
    failed = sum(any(case.find(tag) is not None for tag in ("failure", "error")) for case in cases)
    skips = [skip for case in cases if (skip := case.find("skipped")) is not None]
    # GoogleTest puts file and line before the reason, in a line of their own.
    reasons = sorted({line for skip in skips for line in skip.get("message", "").splitlines()[-1:]})
    return Outcome(len(cases) - failed - len(skips), failed, len(skips), tuple(reasons))


def read_cases(report: Path) -> list[ElementTree.Element]:
    return list(ElementTree.parse(report).iter("testcase")) if report.exists() else []


def checked(outcome: Outcome, ended_well: bool) -> Outcome:
    """The outcome, with one failure more for a runner that failed without saying where."""
    if outcome == Outcome():
        return Outcome(failed=1, notes=("no test ran",))
    if not ended_well and not outcome.failed:
        return outcome + Outcome(failed=1, notes=("the runner failed; see the log",))
    return outcome


def ctest_outcome(report: Path, details: Path) -> Outcome:
    """Counts the tests inside each executable that ctest ran, as far as it lived to report them."""
    outcome = Outcome()
    for case in read_cases(report):
        by_ctest = count([case])
        inside = read_cases(details / f"{case.get('name')}.xml")
        outcome += checked(count(inside), not by_ctest.failed) if inside else by_ctest
    return outcome


def cpp_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.h", "*.cpp"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return [name for name in listed if (ROOT / name).exists()]


def run_format(log: Log) -> Outcome:
    outcome = check(log, "ruff", "format", "--check", ".")
    if shutil.which("clang-format-14") is None:
        return outcome + Outcome(skipped=1, notes=("no clang-format-14 here",))
    return outcome + check(log, "clang-format-14", "--dry-run", "-Werror", *cpp_files())


def run_lint(log: Log) -> Outcome:
    return check(log, "ruff", "check", ".") + check(log, "mypy")


def run_tidy(log: Log) -> Outcome:
    if shutil.which(tidy.CLANG_TIDY) is None:
        return Outcome(skipped=1, notes=(f"no {tidy.CLANG_TIDY} here",))
    if not log.run(CMAKE, "--preset", "dev"):
        return Outcome(failed=1, notes=("cmake --preset dev failed",))
    passed, failed = tidy.check_all(ROOT, ROOT / "build" / "dev", log.write, log.deadline)
    return Outcome(passed, failed)


def without_address_randomisation(log: Log) -> tuple[str, ...]:
    """What to put before a sanitized program, where the system lets us. Kernels that randomise 32
    bits of an address leave gcc 12's sanitizers no room, and the program ends at its start."""
    command = ("setarch", "-R")
    return command if log.run(*command, "true") else ()


def run_ctest(log: Log, preset: str, labels: str | None) -> Outcome:
    folder = ROOT / "build" / preset
    if not (
        log.run(CMAKE, "--preset", preset)
        and log.run(CMAKE, "--build", str(folder), "--target", "sgpu_tests")
    ):
        return Outcome(failed=1, notes=("the build failed",))
    report = log.path.with_suffix(".xml")
    report.unlink(missing_ok=True)
    details = LOGS / preset
    shutil.rmtree(details, ignore_errors=True)
    command = [CTEST, "--test-dir", str(folder), "--output-on-failure", "--parallel", "2"]
    command += ["--output-junit", str(report)]
    environment = ["env", f"GTEST_OUTPUT=xml:{details}/"]
    if labels is not None:
        command += ["-L", labels]
        # Without it undefined behaviour is printed, and the test passes.
        environment += ["UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1"]
        environment += without_address_randomisation(log)
    ended_well = log.run(*environment, *command)
    return checked(ctest_outcome(report, details), ended_well)


def run_pytest(log: Log, kind: str) -> Outcome:
    report = log.path.with_suffix(".xml")
    report.unlink(missing_ok=True)
    ended_well = log.run(
        sys.executable, "-m", "pytest", f"tests/{kind}", "-v", "-ra", f"--junitxml={report}"
    )
    return checked(count(read_cases(report)), ended_well)


def has_pytests(kind: str) -> bool:
    return any((ROOT / "tests" / kind).rglob("test_*.py"))


def has_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()


def why_not(kind: str) -> str | None:
    """Why tests of this kind cannot run on this machine, if they cannot."""
    if kind == "gpu" and not has_gpu():
        return "no GPU here"
    if kind == "browser" and shutil.which("chromium") is None:
        return "no chromium here"
    return None


def pytest_kind(kind: str) -> Callable[[Log], Outcome]:
    def run(log: Log) -> Outcome:
        reason = why_not(kind)
        if reason is None:
            return run_pytest(log, kind)
        log.write(f"Skipped: {reason}.\n")
        files = len(list((ROOT / "tests" / kind).rglob("test_*.py")))
        return Outcome(skipped=files, notes=(reason,))

    return run


def all_kinds() -> dict[str, Callable[[Log], Outcome] | None]:
    """Every kind in the order they run; None where there is no test of that kind yet."""
    others = sorted(path.name for path in (ROOT / "tests").iterdir() if has_pytests(path.name))
    names = [*PYTEST_KINDS, *(name for name in others if name not in PYTEST_KINDS)]
    return {
        "format": run_format,
        "lint": run_lint,
        "cpp": lambda log: run_ctest(log, "dev", None),
        "asan": lambda log: run_ctest(log, "asan", SANITIZED_LABELS),
        "tsan": lambda log: run_ctest(log, "tsan", SANITIZED_LABELS),
        **{name: pytest_kind(name) if has_pytests(name) else None for name in names},
        "tidy": run_tidy,
    }


def run_kind(kind: str, run: Callable[[Log], Outcome]) -> Row:
    print(f"== {kind} begins", flush=True)
    log = Log(LOGS / f"{kind}.log")
    start = time.monotonic()
    try:
        outcome = run(log)
    except Exception:  # a fault of this program, or of a tool it calls: the other kinds still run
        log.write(traceback.format_exc())
        outcome = Outcome(failed=1, notes=("could not be run; see the log",))
    seconds = time.monotonic() - start
    said = [f"== {kind} {outcome.counts()}, {seconds:.0f} s"]
    if outcome.failed:
        lines = log.path.read_text(encoding="utf-8", errors="replace").splitlines()
        said += [f"-- the end of {log.path.relative_to(ROOT)}:", *lines[-SHOWN_LOG_LINES:], "--"]
    print("\n".join(said), flush=True)  # in one piece: another kind may end at the same time
    return Row(kind, outcome, seconds)


def run_kinds(kinds: Mapping[str, Callable[[Log], Outcome]]) -> list[Row]:
    """Runs them, those of COMPUTING beside the rest. Rows in the order of `kinds`."""
    behind = {name: run for name, run in kinds.items() if name in COMPUTING}
    if len(behind) == len(kinds):
        return [run_kind(name, run) for name, run in kinds.items()]
    # A thread's priority is its own, and that of the commands it starts.
    with ThreadPoolExecutor(max_workers=1, initializer=os.nice, initargs=(10,)) as beside:
        later = [beside.submit(run_kind, name, run) for name, run in behind.items()]
        try:
            rows = [run_kind(name, run) for name, run in kinds.items() if name not in behind]
            rows += [row.result() for row in later]
        except BaseException:
            beside.shutdown(wait=False, cancel_futures=True)
            kill_running()
            raise
    order = list(kinds)
    return sorted(rows, key=lambda row: order.index(row.kind))


def table(rows: Sequence[Row], absent: Sequence[str]) -> str:
    lines = [f"{'kind':<10} {'passed':>6} {'failed':>6} {'skipped':>7} {'seconds':>7}"]
    for row in rows:
        outcome = row.outcome
        note = "; ".join(outcome.notes)
        lines.append(
            f"{row.kind:<10} {outcome.passed:>6} {outcome.failed:>6} {outcome.skipped:>7} "
            f"{row.seconds:>7.0f}  {note}".rstrip()
        )
    lines += [
        f"{kind:<10} {'-':>6} {'-':>6} {'-':>7} {'-':>7}  no test of this kind yet"
        for kind in absent
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    kinds = all_kinds()
    parser = argparse.ArgumentParser(prog="./dev test", description="Runs the tests by kind.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="only these kinds")
    parser.add_argument("--list", action="store_true", help="print the kinds and end")
    options = parser.parse_args(argv)
    if options.list:
        print(*kinds, sep="\n")
        return 0
    unknown = [name for name in options.kinds if name not in kinds]
    if unknown:
        parser.error(f"no such kind: {', '.join(unknown)}; there are {', '.join(kinds)}")
    chosen = [name for name in kinds if not options.kinds or name in options.kinds]
    rows = run_kinds({name: run for name in chosen if (run := kinds[name]) is not None})
    print()
    print(table(rows, [name for name in chosen if kinds[name] is None]))
    total = sum((row.outcome for row in rows), Outcome())
    print(total.counts())
    return 1 if total.failed or not rows else 0


if __name__ == "__main__":
    # An end from outside takes the kind that runs along, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr, flush=True)
        os._exit(1)  # the other thread may be in the middle of a kind
