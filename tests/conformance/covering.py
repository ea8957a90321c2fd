"""Choice of cases for each layout of ranks: a covering set, or all cases.

Every store case runs on one rank, on 3 threads, on 2 or 3 processes, and on 2 or 3 stand-ins.
On other layouts the modules run in which the layout makes a difference, and a few cases of all
others.  With an updater on rank 0, or on owners, the modules run in which the placement makes a
difference; the modules of owners run on one layout of each kind.  Long communicator cases run on
one layout of each kind, and cases that need torch on one layout of processes.
``NCCLKV_TEST_CASES=all`` runs each case everywhere.  ``python -m tests.mutants`` shows that no
planted fault escapes the covering set.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

from tests.conformance import CASES, Case
from tests.conformance.communicator_all import SWEEPS
from tests.harness.extent import complete
from tests.nccl.first_cases import FIRST

NODE_MODULES = frozenset(
    [
        "checkpoints_compressed",
        "compression_of_halves",
        "compression_of_largest_nodes",
        "compression_of_nodes",
    ]
)
"""Modules of cases whose sums on devices depend on the nodes of the ranks."""

PLACEMENTS = ("every_rank", "root", "sharded")

PLACED_MODULES = frozenset(
    [
        "callbacks",
        "checkpoints",
        "checkpoints_compressed",
        "checkpoints_refused",
        "compression",
        "compression_of_halves",
        "compression_of_largest",
        "compression_of_largest_nodes",
        "compression_of_matrices",
        "compression_of_nodes",
        "divergence",
        "divergence_repair",
        "groups",
        "introspection",
        "pending_pushes",
        "mxnet_nightly",
        "nonfinite",
        "norms",
        "optimizers",
        "overlaps",
        "plans",
        "precision",
        "missing_pushes",
        "pulls",
        "regressions",
        "reproducible",
        "schedules",
        "sparse_lists",
        "trajectories",
        "uneven",
        "updaters",
        "updaters_raising",
        "views",
        "late_ranks",
    ]
)
"""Modules of cases in which the placement of the updater makes a difference."""

PAIRED_MODULES = frozenset(
    [
        "arrays",
        "dtypes",
        "foreign_arrays",
        "introspection",
        "keys",
        "misuse_arrays",
        "misuse_calls",
        "misuse_keys",
        "misuse_lists",
        "mxnet_nightly",
        "mxnet_unit",
        "numbers",
    ]
)
"""Modules of cases about the calls of one rank: two ranks show as much as more."""

SIZED_MODULES = frozenset(
    [
        "buckets",
        "compression",
        "compression_of_halves",
        "compression_of_largest",
        "compression_of_largest_nodes",
        "compression_of_matrices",
        "compression_of_nodes",
        "reductions",
        "contract",
        "missing_pushes",
        "objects",
        "one_off",
        "one_off_misuse",
        "reproducible",
        "sparse_lists",
        "uneven",
        "late_ranks",
    ]
)
"""Modules of cases in which the count of ranks makes a difference."""

SHARED_MODULES = frozenset(
    [
        "checkpoints",
        "checkpoints_compressed",
        "pending_pushes",
        "missing_pushes",
        "pulls",
        "sparse_lists",
        "uneven",
        "updaters",
        "views",
        "late_ranks",
    ]
)
"""Modules of cases in which processes read what the updater on rank 0 has written."""

SPLIT_MODULES = frozenset(
    [*SIZED_MODULES, "divergence", "divergence_repair", "nonfinite", "norms", "pulls", "sharded"]
)
"""Modules of cases whose messages between nodes differ from those of other cases."""

STREAM_MODULES = frozenset(["divergence", "groups", "nonfinite", "norms", "optimizers"])
"""Modules of cases whose work on a device depends on the placement, besides `SHARED_MODULES`."""

DIVIDED_MODULES = frozenset(
    [
        "checkpoints",
        "checkpoints_compressed",
        "compression",
        "compression_of_halves",
        "compression_of_largest",
        "compression_of_largest_nodes",
        "compression_of_matrices",
        "compression_of_nodes",
        "norms",
        "optimizers",
        "sparse_lists",
        "trajectories",
        "uneven",
        "updaters",
    ]
)
"""Modules of cases with a function or an optimizer, which owners of parts run."""

MANY_STEPS = frozenset(["trajectories"])
"""Modules of cases with many steps of every optimizer, which processes of one node make."""

ALL = frozenset(case.name.partition(".")[0] for case in CASES)
NONE: frozenset[str] = frozenset()

WHOLE = (ALL, PLACED_MODULES, PLACED_MODULES)
"""Modules that run on more than four ranks, and on the layouts that run every case."""

FEW = (NONE, NONE, NONE)
"""Modules that run on layouts that `COVERING` does not name: only the cases of `FIRST` run."""

COVERING: dict[str, tuple[frozenset[str], frozenset[str], frozenset[str]]] = {
    **dict.fromkeys(("solo-1", "threads-3"), WHOLE),
    "stand-in-2": (PAIRED_MODULES, NONE, NONE),
    "stand-in-3": (
        ALL - PAIRED_MODULES,
        SHARED_MODULES | STREAM_MODULES | MANY_STEPS,
        DIVIDED_MODULES,
    ),
    "stand-in-nodes-3": (NODE_MODULES, NONE, NONE),
    "stand-in-nodes-4": (NODE_MODULES, NODE_MODULES, NODE_MODULES),
    **dict.fromkeys(
        ("threads-1", "threads-2", "threads-4"),
        (SIZED_MODULES, SIZED_MODULES & PLACED_MODULES, NONE),
    ),
    "ranks-4": (SIZED_MODULES | MANY_STEPS, NONE, MANY_STEPS),
    "ranks-2": (PAIRED_MODULES | SIZED_MODULES | MANY_STEPS, NONE, MANY_STEPS),
    "ranks-3": (ALL - PAIRED_MODULES, SHARED_MODULES | MANY_STEPS, DIVIDED_MODULES),
    "nodes-3": (SIZED_MODULES | {"sharded"}, NONE, NONE),
    "nodes-4": (SPLIT_MODULES, SPLIT_MODULES & SHARED_MODULES, DIVIDED_MODULES),
}
"""Modules that run on each layout: with an updater on every rank, on rank 0 alone, on owners."""

STAND_INS = ("stand-in", "stand-in-nodes")
"""Layouts in a GPU's memory, on one node or with two ranks on each."""

IN_ONE_PROCESS = ("solo", "threads", *STAND_INS)
"""Layouts whose ranks are one process."""

PROCESSES_WITH_TORCH = "ranks-3"
"""Layout of processes with the cases that need torch: each process takes a second to import it."""


def covers(case: Case, layout: str, size: int, update_on: str) -> bool:
    """Return whether a case runs on `size` ranks of a layout, such as ``threads``."""
    if not case.fits(size) or (case.places and update_on != "every_rank"):
        return False
    if layout in STAND_INS and case.in_host_memory:
        return False
    if complete():
        return True
    where = f"{layout}-{size}"
    if case.needs == "torch" and layout not in IN_ONE_PROCESS and size <= 4:
        return where == PROCESSES_WITH_TORCH and update_on == "every_rank"
    modules = WHOLE if size > 4 else COVERING.get(where, FEW)
    module = case.name.partition(".")[0]
    if module in modules[PLACEMENTS.index(update_on)]:
        return True
    return update_on == "every_rank" and case.name in FIRST


def chosen(layout: str, *sizes: int) -> list[Any]:
    """Return pytest's parameters ``case``, ``size`` and ``update_on`` of a layout."""
    return [
        pytest.param(case, size, update_on, id=f"{case.name}-{size}-{update_on}")
        for update_on in PLACEMENTS
        for case in CASES
        for size in sizes
        if covers(case, layout, size, update_on)
    ]


SWEPT = ("threads-3", "stand-in-3", "ranks-3", "halves-3", "nodes-4")
"""Layouts that run the communicator cases of `SWEEPS`, as all do with more than four ranks."""


def communicator_cases(names: Iterable[str], layout: str, size: int) -> list[str]:
    """Return those of the communicator cases that run on a layout."""
    swept = complete() or size > 4 or f"{layout}-{size}" in SWEPT
    return [name for name in names if swept or name not in SWEEPS]


def layout_of_ranks(*, several_hosts: bool) -> str:
    """Return the layout of a job's ranks, by the environment that ``tests.suite`` gives it."""
    if several_hosts:
        return "hosts"
    if "NCCLKV_RANKS_PER_NODE" in os.environ:
        return "nodes"
    if "NCCLKV_NODE_MEMORY" in os.environ:
        return os.environ["NCCLKV_NODE_MEMORY"]
    return "plain" if os.environ.get("NCCLKV_COMPILED") == "0" else "ranks"
