"""The `serverless-gpu` command."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "serverless-gpu-kernel"
KERNEL_NAME = "serverless-gpu"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit status: 0; or 1, with one line on stderr, or if the doctor
    has found an error.

    Wrong usage ends the process with 2, as argparse does.
    """
    options = _parser().parse_args(argv)
    if options.command == "mlflow-replay":
        from .tracking.replay import command

        return command(options.file, options.to)
    if options.command == "doctor":
        return _doctor(as_json=options.json, all_reduce=not options.quick)
    try:
        where = install_kernelspec(prefix=options.prefix)
    except (ImportError, OSError, LookupError) as error:
        print(f"serverless-gpu: {error}", file=sys.stderr)
        return 1
    print(f"Installed the kernel '{KERNEL_NAME}' in {where}")
    return 0


def _doctor(*, as_json: bool, all_reduce: bool) -> int:
    from . import doctor, pool

    checks = doctor.examine(all_reduce=all_reduce)
    print(doctor.as_json(checks) if as_json else doctor.report(checks))
    pool.stop()
    return 0 if doctor.healthy(checks) else 1


def install_kernelspec(prefix: str | None = None) -> Path:
    """Writes a kernelspec that starts this very interpreter, and returns its folder.

    The wheel's own kernelspec serves a Jupyter of the same environment; this one serves any.
    It goes to `prefix`/share/jupyter/kernels, or to the user's own Jupyter folder without one.

    Raises LookupError if the package is not installed, ImportError without jupyter_client, OSError
    if the folder cannot be written.
    """
    from jupyter_client.kernelspec import KernelSpecManager

    source = _packaged_kernelspec()
    with tempfile.TemporaryDirectory(prefix="serverless-gpu-") as scratch:
        folder = Path(scratch) / KERNEL_NAME
        shutil.copytree(source, folder)
        spec_file = folder / "kernel.json"
        spec = json.loads(spec_file.read_text(encoding="utf-8"))
        spec["argv"][0] = sys.executable
        spec_file.write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
        installed = KernelSpecManager().install_kernel_spec(
            str(folder), kernel_name=KERNEL_NAME, user=prefix is None, prefix=prefix
        )
    return Path(installed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="serverless-gpu", description="Distributed PyTorch from a Jupyter notebook."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    install = commands.add_parser(
        "install",
        help="make the kernel known to a Jupyter of another environment",
        description="Writes a kernelspec with the absolute path of this Python. A Jupyter in this "
        "same environment finds the kernel without it.",
    )
    place = install.add_mutually_exclusive_group()
    place.add_argument(
        "--user",
        action="store_const",
        const=None,
        dest="prefix",
        help="for this user (the default)",
    )
    place.add_argument("--prefix", metavar="P", help="under P/share/jupyter/kernels")
    place.add_argument(
        "--sys-prefix",
        action="store_const",
        const=sys.prefix,
        dest="prefix",
        help="under the prefix of this Python",
    )
    install.set_defaults(prefix=None)
    replay = commands.add_parser(
        "mlflow-replay",
        help="write what an MLflow store did not take into it",
        description="The file is named in the status line of a call whose store was away. Tokens "
        "and passwords are not in it: they come from the environment, as ever.",
    )
    replay.add_argument("file", metavar="FILE", type=Path)
    replay.add_argument("--to", metavar="URI", help="another store than the one that was away")
    doctor = commands.add_parser(
        "doctor",
        help="say what keeps ranks from working here, and what to do",
        description="Looks at driver, GPUs, torch, NCCL, shared memory, limits, Jupyter and "
        "MLflow. Ends with 1 if there is an error.",
    )
    doctor.add_argument("--json", action="store_true", help="the same for programs")
    doctor.add_argument(
        "--quick", action="store_true", help="without the all-reduce over all ranks"
    )
    return parser


def _version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _packaged_kernelspec() -> Path:
    """The folder of the kernelspec that the wheel brought."""
    try:
        files = metadata.distribution(DISTRIBUTION).files or []
    except metadata.PackageNotFoundError:
        raise LookupError(f"{DISTRIBUTION} is not installed; pip install it first") from None
    for file in files:
        if file.parts[-2:] == (KERNEL_NAME, "kernel.json"):
            return Path(str(file.locate())).resolve().parent
    raise LookupError(f"{DISTRIBUTION} was installed without its kernelspec; install it again")


if __name__ == "__main__":
    sys.exit(main())
