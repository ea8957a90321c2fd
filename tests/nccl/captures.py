"""Stores of the stand-in that only the test closes, the state of their graphs, and placements."""

from __future__ import annotations

import itertools
from typing import Any

from tests.conformance.captures_all import Ready
from tests.harness.extent import some_or_all
from tests.nccl.standin import Worker
from tests.nccl.standin.stores import StandInStores

PLACEMENTS = some_or_all(
    [("every_rank", 3), ("root", 2), ("sharded", 3)],
    list(itertools.product(["every_rank", "root", "sharded"], [1, 2, 3, 4])),
)
"""Placements of the updater, and counts of ranks, on which each case of a capture runs."""


def graphs_of(worker: Worker) -> set[str]:
    """Return the graphs that hold any communicator."""
    return set().union(*(handle.graphs for handle in worker.binding._handles))


def opened(worker: Worker, update_on: str = "every_rank", **options: Any) -> Ready:
    """Open a store that only the test closes."""

    def create(**more: Any) -> Any:
        return StandInStores(worker, update_on).open(update_on=update_on, **options, **more)

    return Ready(create)  # type: ignore[arg-type]


def ends(worker: Worker) -> list[str]:
    """Return the end of each communicator, and the graphs that existed before it."""
    return [line.split()[0] for line in worker.log.lines if line.startswith(("destroy", "abort"))]
