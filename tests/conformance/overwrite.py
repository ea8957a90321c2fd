"""Stores with `verify_every`, and ways to overwrite the values of one rank."""

from __future__ import annotations

from typing import Any

import pytest

from ncclkv.errors import Divergence
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import check_words, full
from tests.conformance.stores import Stores
from tests.harness.context import context_of

WRONG = 99
"""Value of an unwanted write."""


def open_verified(create: Stores, every: int = 1, **options: Any) -> Any:
    """Return a store with keys "w" and "b", which hold 2 and 4, and with `verify_every`."""
    kv = create(verify_every=every, **options)
    kv.init(["w", "b"], [full(2), full(4)])
    return kv


def last(kv: Any) -> int:
    """Return the rank whose values are overwritten."""
    return int(kv.num_workers - 1)


def uncounted_barrier(kv: Any) -> None:
    """Wait for all ranks, without a counted call of the store."""
    context_of(kv).comm.control.barrier("a test")


def weight(kv: Any, key: Any) -> Any:
    """Return the view of a key in this rank's weights."""
    return context_of(kv).engine.layout[key].weight


def overwrite(kv: Any, key: Any) -> list[int]:
    """Overwrite the last rank's copy of a value; return the ranks that have the same copy.

    Return no ranks if all ranks share the copy: then no rank differs.
    """
    kv.wait()
    uncounted_barrier(kv)
    if kv.rank == last(kv):
        current_buffers().write(weight(kv, key), WRONG)
    context_of(kv).comm.synchronize()
    uncounted_barrier(kv)
    first = float(current_buffers().get(weight(kv, key))[0])
    seen = context_of(kv).comm.control.allgather(first == WRONG, "a test")
    uncounted_barrier(kv)
    return [] if all(seen) else [rank for rank, wrong in enumerate(seen) if wrong]


def describe_outliers(outliers: list[int], size: int) -> str:
    """Return the text of an error about the ranks that differ from the others."""
    others = [rank for rank in range(size) if rank not in outliers]
    has = "has" if len(outliers) == 1 else "have"
    return f"{_ranks(outliers)} {has} other bits than {_ranks(others)}"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def expect_divergence(kv: Any, call: Any, outliers: list[int], *words: str) -> None:
    """Expect `Divergence` of a call on every rank, and a broken store."""
    if not outliers:
        call()
        return
    with pytest.raises(Divergence) as caught:
        call()
    begin = f"rank {kv.rank} of {kv.num_workers}: after "
    check_words(
        caught.value, begin, describe_outliers(outliers, kv.num_workers), "repair=True", *words
    )
    with pytest.raises(Divergence) as again:
        kv.pull("w")
    assert str(again.value) == str(caught.value)


class OverwritingKernels:
    """Kernels that write a wrong value into the first array of a pull."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def unpack_all(self, slots: Any, outs: Any, table: Any = None) -> Any:
        table = self._kernels.unpack_all(slots, outs, table)
        current_buffers().write(outs[0], WRONG)
        return table


def overwrite_pulls(kv: Any) -> None:
    """Start to overwrite the arrays that the last rank pulls."""
    if kv.rank == last(kv):
        engine = context_of(kv).engine
        engine.kernels = OverwritingKernels(engine.kernels)


def restore_pulls(kv: Any) -> None:
    """Stop overwriting the arrays that the last rank pulls."""
    if kv.rank == last(kv):
        engine = context_of(kv).engine
        engine.kernels = engine.kernels._kernels
