"""The ranks of one function call: taken from the spares, thrown away after it."""

from __future__ import annotations

from typing import Any

from . import _core, accelerator, call, early, gpu_claims, gpu_warm, pool, serialize
from .sessions import session


def run_function(
    payload: serialize.Payload,
    options: call.CallOptions,
    ranks: int,
    here: accelerator.Accelerator,
    wait: float | None,
) -> list[Any]:
    """Runs a dumped function call in ranks that know nothing of earlier calls, one value per rank.

    `wait`: seconds to wait for GPUs that another notebook has. Raises what
    `DistributedFunction.distributed` raises.
    """
    options.check_output(ranks)
    owner = pool.get()
    mine = session().pids() if here.is_gpu else []
    claim = gpu_claims.take(here.devices[:ranks], wait, owner, mine)
    children: list[int] = []
    try:
        gpu_warm.check(owner)
        # Those of a session wait for all imports: what a rank imports by itself it has for itself.
        up = owner.fork_server_up()
        imports = _core.Imports.all if up else early.imports_needed(payload)
        children = owner.core.take(ranks, imports)
        group = call.Group(
            members=list(enumerate(children)),
            world=ranks,
            session=False,
            epoch=f"{owner.token}-f{children[0]}",
            device=here.label,
            note=claim.note,
            imports=imports,
            devices=here.devices[:ranks],
        )
        ended = call.run(owner, group, "function", payload, options)
    finally:
        owner.core.retire(children)
        gpu_claims.leave(children, claim)
        owner.core.set_spares(max(accelerator.warm_ranks(), ranks))
        gpu_warm.begin()  # who has called once calls again
    if ended.error is not None:
        raise ended.error
    return [ended.values[rank] for rank in range(ranks)]
