"""Extent of a test run: the covering set of parameters, or all of them.

``NCCLKV_TEST_CASES=all``, which ``make test RUNS=all`` sets, asks for all.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")

VARIABLE = "NCCLKV_TEST_CASES"


def complete() -> bool:
    """Return whether all parameters are asked for."""
    return os.environ.get(VARIABLE) == "all"


def some_or_all(some: Sequence[T], every: Sequence[T]) -> Sequence[T]:
    """Return the covering set's part of a test's parameters, or all of them."""
    return every if complete() else some


def examples(count: int) -> int:
    """Return the count of random examples that a test draws; a complete run draws `count`."""
    return count if complete() else count // 6


def combinations(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return all combinations of values, or in the covering set a few that contain each value.

    Examples
    --------
    >>> combinations("abc", "xy")  # doctest: +SKIP
    [('a', 'x'), ('b', 'y'), ('c', 'x')]
    """
    if complete():
        return list(itertools.product(*axes))
    most = max(map(len, axes))
    return [tuple(axis[index % len(axis)] for axis in axes) for index in range(most)]
