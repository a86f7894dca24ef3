"""What a rank waits for: its collectives that have not ended, from torch's flight recorder."""

from __future__ import annotations

import json
import pickle
import sys
import time
from typing import Any

_WORDS = 8  # numbers of a shape that are told


def waiting(since_ns: int) -> str:
    """The last collective of each process group as JSON: a list of `group`, `op`, `number` (counted
    within the group, from 1), `shape`, `pending`, `seconds` (since it began).

    Only those begun after `since_ns` (time.time_ns()): a group that was aborted before has
    collectives that never end. "" if torch.distributed was not used, or keeps no record.

    Called in a thread beside the main one, which may sit in one of them. Takes about a millisecond.
    """
    torch_c: Any = sys.modules.get("torch._C._distributed_c10d")
    found: dict[str, dict[str, Any]] = {}
    for recorder in _RECORDERS:
        dump = getattr(torch_c, recorder, None)
        if dump is None:
            continue
        # Stacks are not asked for: beside a main thread that waits for a GPU they do not come.
        record = pickle.loads(
            dump(includeCollectives=True, includeStackTraces=False, onlyActive=False)
        )
        for one in last_of_each_group(record.get("entries", []), since_ns, time.time_ns()):
            # A group for both kinds of tensors is in both records: where it waits counts.
            if one["pending"] or one["group"] not in found:
                found[one["group"]] = one
    return json.dumps(list(found.values())) if found else ""


#: gloo's record, and NCCL's, which builds of torch for GPUs have besides.
_RECORDERS = ("_dump_fr_trace", "_dump_nccl_trace")


def last_of_each_group(
    entries: list[dict[str, Any]], since_ns: int, now_ns: int
) -> list[dict[str, Any]]:
    """Of the recorder's entries, oldest first, the last one of each group."""
    groups: dict[str, dict[str, Any]] = {}
    newest: dict[str, int] = {}
    for entry in entries:
        if entry["time_created_ns"] < since_ns:
            continue
        name, description = entry["process_group"]
        # A group that was made anew has the name of the one before, and a higher number.
        if entry["pg_id"] < newest.get(name, 0):
            continue
        newest[name] = entry["pg_id"]
        shapes = entry["input_sizes"] or entry["output_sizes"]
        groups[name] = {
            "group": name if description in ("", "undefined", "default_pg") else description,
            "default": description == "default_pg",
            "op": entry["profiling_name"].partition(":")[2] or entry["profiling_name"],
            "number": entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"],
            "shape": shapes[0][:_WORDS] if shapes else [],
            "pending": not entry["retired"] and entry["state"] != "completed",
            "seconds": (now_ns - entry["time_created_ns"]) / 1e9,
        }
    return list(groups.values())
