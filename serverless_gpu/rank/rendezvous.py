"""The process that hosts the TCPStore where ranks meet. No rank's death takes it along."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from .process_group import STORE_HOST


def main(config: dict[str, Any]) -> None:
    """Serves until the pool ends. `config["store_file"]` gets the port, as JSON, in one piece."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore(STORE_HOST, 0, is_master=True, wait_for_workers=False)
    path = config["store_file"]
    with open(path + ".new", "w") as f:
        json.dump({"port": store.port}, f)
    os.rename(path + ".new", path)
    while True:
        signal.pause()
