"""Parts of a run, one file a part: ``run(job)`` measures, checks, records; collective."""

from __future__ import annotations

from collections.abc import Callable

from bench.cases import (
    allreduce_64mib,
    comparing,
    contract,
    cpu_time,
    kernels,
    key_lists,
    many_keys,
    memory_use,
    models,
    narrow,
    new_arrays,
    raw,
    short_flush,
    slow_link,
    sweep,
    torch_modules,
    tracing,
    updates,
    wire,
)
from bench.job import Job

HOST: dict[str, Callable[[Job], None]] = {
    "raw": raw.run,
    "sizes": sweep.run,
    "allreduce": allreduce_64mib.run,
    "lists": key_lists.run,
    "keys": many_keys.run,
    "flush": short_flush.run,
    "contract": contract.run,
    "comparing": comparing.run,
    "models": models.run,
    "narrow": narrow.run,
    "wire": wire.run,
    "new-arrays": new_arrays.run,
    "trace": tracing.run,
    "modules": torch_modules.run,
    "updates": updates.run,
    "memory": memory_use.run,
}

BY_NAME: dict[str, Callable[[Job], None]] = {"slow-link": slow_link.run}
"""Parts that run only if ``--only`` names them."""

GPU: dict[str, Callable[[Job], None]] = {
    "raw": raw.run,
    "sizes": sweep.run,
    "kernels": kernels.run,
    "updates": updates.run,
    "cpu": cpu_time.run,
    "lists": key_lists.run,
    "keys": many_keys.run,
    "comparing": comparing.run,
    "models": models.run,
    "trace": tracing.run,
}
