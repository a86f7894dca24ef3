"""`python -m serverless_gpu.kernel -f CONNECTION_FILE`: the kernel's process."""

from __future__ import annotations

import os
import sys

# The notebook's folder must not shadow modules that the kernel imports; the shell puts it back. The
# kernelspec's variable does that from Python 3.11 on; children of cells are to run as always.
if os.environ.pop("PYTHONSAFEPATH", None) is None and sys.path[:1] in ([""], [os.getcwd()]):
    del sys.path[0]

import platform
import signal

from serverless_gpu._kernel import Kernel


def main(arguments: list[str]) -> None:
    """Serve the connection file after `-f` until the client ends the kernel."""
    if "-f" not in arguments[:-1]:
        sys.exit("usage: python -m serverless_gpu.kernel -f CONNECTION_FILE")
    connection_file = arguments[arguments.index("-f") + 1]
    del sys.argv[1:]  # argparse in cells must not see ours
    # The kernel lets SIGINT in while a cell runs, also if its parent ignored it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from serverless_gpu import __version__

    kernel = Kernel(connection_file, __version__, platform.python_version())
    from serverless_gpu.kernel.front import Front

    front = Front(kernel)
    front.shutdown(kernel.run(front))
    kernel.finish()


main(sys.argv)
