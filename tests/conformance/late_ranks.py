"""Ranks that do not arrive: the others raise, in time, and the store stays broken."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ncclkv.errors import CommError, CommTimeout, OrderMismatch
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import check_words, full, intact, probed
from tests.conformance.registry import case
from tests.conformance.stores import Stores

# A busy machine can make a store in this time; each case waits so long, so four ranks alone run
# them.
SECONDS = 1.0


def is_late(kv: Any) -> bool:
    """Return whether this is the rank that the others wait for."""
    return bool(kv.rank == kv.num_workers - 1)


def patient(create: Stores) -> Any:
    """Return a store that waits for `SECONDS`, with one key."""
    kv = create(timeout=SECONDS)
    kv.init("weight", full(0))
    kv.barrier()
    return kv


def closed(kv: Any, instead: str) -> None:
    """Close a store; the late rank does so while the others call something else.

    The others have left: the late rank receives their farewell, or finds their calls first.
    """
    try:
        kv.close()
    except OrderMismatch as error:
        assert is_late(kv)
        check_words(error, f"called {instead}", f"rank {kv.rank} called close()")


@case(sizes={4})
def a_rank_that_does_not_push(create: Stores) -> None:
    good, kv = probed(create), patient(create)
    if is_late(kv):
        time.sleep(2 * SECONDS)
    else:
        kv.push("weight", full(1))
        begin = time.monotonic()
        with pytest.raises(CommTimeout) as caught:
            kv.pull("weight", out=full(0))
        assert SECONDS * 0.9 < time.monotonic() - begin < SECONDS + 2
        assert isinstance(caught.value, TimeoutError)
        # Off the root, the missing collective is the root's broadcast.
        missing = 0 if create.update_on == "root" and kv.rank else kv.num_workers - 1
        named = current_buffers().capabilities.missing.format(last=missing).strip("; (")
        check_words(
            caught.value, "'weight'", f"rank {kv.rank} of", named, f"(timeout {SECONDS:g} s)"
        )
    good.barrier()
    closed(kv, "push('weight')")
    intact(good)


@case(sizes={4})
def every_call_after_a_timeout(create: Stores) -> None:
    good, kv = probed(create), patient(create)
    if is_late(kv):
        # A wait in the other store would be reported as two stores that wait for each other.
        time.sleep(2 * SECONDS)
    else:
        with pytest.raises(CommTimeout) as first:
            kv.barrier()
        calls = [lambda: kv.push("weight", full(1)), lambda: kv.pull("weight"), kv.wait, kv.barrier]
        for call in calls:
            begin = time.monotonic()
            with pytest.raises(CommTimeout) as again:
                call()
            assert time.monotonic() - begin < SECONDS / 2
            assert str(again.value) == str(first.value)
    good.barrier()
    closed(kv, "barrier()")
    intact(good)


def one_rank_raises(kv: Any) -> None:
    """Wait for a rank that leaves."""
    kv.init(3, full(0))
    if is_late(kv):
        raise ZeroDivisionError("mine")
    kv.push(3, full(1))
    kv.pull(3)


@case(sizes={4})
def an_exception_in_the_with_block(create: Stores) -> None:
    good = probed(create)
    expected = ZeroDivisionError if is_late(good) else CommError
    with pytest.raises(expected, match="mine"), create(timeout=SECONDS) as kv:
        one_rank_raises(kv)
    good.barrier()
    intact(good)


@case(sizes={4})
def halves_of_the_ranks_that_push_other_keys(create: Stores) -> None:
    """Nodes differ from each other, and no rank differs from its own node."""
    good, kv = probed(create), create()
    kv.init(["a", "b"], [full(0), full(0)])
    key = "a" if kv.rank < kv.num_workers // 2 else "b"
    with pytest.raises(OrderMismatch, match="the ranks differ"):
        kv.pushpull(key, full(1))
    intact(good)
