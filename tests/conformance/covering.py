"""Choice of store cases for each layout of ranks: a covering set, or all cases.

A case runs wherever it can find a fault: on every kind of layout, with an updater on every rank; if
the placement makes a difference, with an updater on rank 0 too; if the number of ranks makes a
difference, at the other numbers too.  Communicator cases run at fewer numbers of threads, and fewer
random programs are drawn.  ``NCCLKV_TEST_CASES=all`` runs each everywhere.  ``python -m
tests.mutants`` shows that no planted fault escapes the covering set.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from tests.conformance import CASES, Case
from tests.nccl.first import FIRST

T = TypeVar("T")

VARIABLE = "NCCLKV_TEST_CASES"
PLACEMENTS = ("every_rank", "root")

WHOLE = ("solo-1", "threads-3", "ranks-4", "nodes-4", "stand-in-3")
"""Layouts on which every case runs that fits them, as on more than four ranks."""

SIZED = (
    *("threads-1", "threads-2", "threads-4", "ranks-2", "ranks-3", "nodes-3"),
    *("hosts-3", "hosts-4"),
)
"""Further layouts, for cases in which the number of ranks makes a difference."""

PLACED_MODULES = frozenset(
    [
        "checkpoints",
        "checkpoints_refused",
        "divergence",
        "divergence_repair",
        "groups",
        "introspection",
        "laziness",
        "mxnet_nightly",
        "nonfinite",
        "optimizers",
        "plans",
        "presence",
        "pulling",
        "regressions",
        "reproducible",
        "uneven",
        "updaters",
        "updaters_raising",
        "views",
        "waiting",
    ]
)
"""Modules of cases in which the placement of the updater makes a difference."""

SIZED_MODULES = frozenset(
    ["buckets", "combining", "contract", "presence", "reproducible", "uneven", "waiting"]
)
"""Modules of cases in which the number of ranks makes a difference."""


def covers(case: Case, layout: str, size: int, update_on: str) -> bool:
    """Return whether a case runs on `size` ranks of a layout, such as ``threads``."""
    if not case.fits(size):
        return False
    if os.environ.get(VARIABLE) == "all":
        return True
    where = f"{layout}-{size}"
    whole = where in WHOLE or size > 4
    if case.name in FIRST:
        return whole or update_on == "every_rank"
    module = case.name.partition(".")[0]
    if update_on == "root" and module not in PLACED_MODULES:
        return False
    return whole or (where in SIZED and module in SIZED_MODULES)


def chosen(layout: str, *sizes: int) -> list[Any]:
    """Return pytest's parameters ``case``, ``size`` and ``update_on`` of a layout."""
    return [
        pytest.param(case, size, update_on, id=f"{case.name}-{size}-{update_on}")
        for update_on in PLACEMENTS
        for case in CASES
        for size in sizes
        if covers(case, layout, size, update_on)
    ]


def some_or_all(some: Sequence[T], every: Sequence[T]) -> Sequence[T]:
    """Return the covering set's part of a test's parameters, or all of them."""
    return every if os.environ.get(VARIABLE) == "all" else some


def examples(count: int) -> int:
    """Return how many random programs a test draws; a complete run draws `count`."""
    return count if os.environ.get(VARIABLE) == "all" else count // 3


def layout_of_ranks(*, several_hosts: bool) -> str:
    """Return the layout of a job's ranks, by the environment that ``tests.suite`` gives it."""
    if several_hosts:
        return "hosts"
    if "NCCLKV_RANKS_PER_NODE" in os.environ:
        return "nodes"
    if "NCCLKV_NODE_MEMORY" in os.environ:
        return os.environ["NCCLKV_NODE_MEMORY"]
    return "plain" if os.environ.get("NCCLKV_COMPILED") == "0" else "ranks"
