"""A signal handler that calls a store while its rank waits for the others."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import ncclkv
from ncclkv.errors import CommAborted, RankLost, UsageError
from tests.harness.context import context_of

pytestmark = pytest.mark.limit(60)

WORLD = MPI.COMM_WORLD
AGAIN = 0.02
"""Seconds until a signal that arrived too early is sent again."""

needs_others = pytest.mark.skipif(WORLD.size == 1, reason="one rank waits for nobody")


@contextmanager
def interrupted(kv: ncclkv.KVStore, call: Callable[[], object]) -> Iterator[None]:
    """Call a function in a handler on rank 0, while its verb waits; then let the others arrive."""
    if kv.rank:
        WORLD.recv(source=0)
        yield
        return

    def handler(_: int, frame: Any) -> None:
        waiting = context_of(kv).session.running.verb in ("pull", "pushpull")
        # Python drops errors of a weak reference's callback.
        if not waiting or "weakref" in frame.f_code.co_filename:
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        try:
            call()
        finally:
            for rank in range(1, kv.num_workers):
                WORLD.send(None, rank)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, AGAIN)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


CALLS: dict[str, Callable[[ncclkv.KVStore, Path], object]] = {
    "save": lambda kv, where: kv.save(where),
    "pull": lambda kv, where: kv.pull("w", local=True),
    "barrier": lambda kv, where: kv.barrier(),
    "create": lambda kv, where: ncclkv.create("dist_sync"),
}


@needs_others
@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("update_on", ["every_rank", "root"])
def test_a_handler_is_refused_and_the_verb_goes_on(
    verb: str, update_on: Any, tmp_path: Path
) -> None:
    def call() -> None:
        with pytest.raises(UsageError, match=f"{verb} was called inside pull, by a signal handler"):
            CALLS[verb](kv, tmp_path)

    with ncclkv.create("dist_sync", update_on=update_on, timeout=20) as kv:
        kv.init("w", np.zeros(4))
        for step in range(1, 3):
            with interrupted(kv, call):
                kv.push("w", np.full(4, step * (kv.rank + 1.0)))
                got = kv.pull("w")
            assert got.tolist() == [step * kv.num_workers * (kv.num_workers + 1) / 2] * 4
    assert not [*tmp_path.iterdir()]


@needs_others
def test_what_leaves_a_handler_ends_the_store_with_the_hint() -> None:
    kv = ncclkv.create("dist_sync", timeout=20)
    kv.init("w", np.zeros(4))

    def step() -> None:
        kv.pushpull("w", np.ones(4))
        kv.barrier()  # the sum may be complete: rank 0 had published its part

    with interrupted(kv, kv.barrier), pytest.raises((UsageError, RankLost)) as caught:
        step()
    if kv.rank:
        assert "rank 0 left" in str(caught.value)
    else:
        assert "barrier was called inside pushpull" in str(caught.value)
        assert "set a flag there" in str(caught.value)
        with pytest.raises(CommAborted, match="rank 0 of .*pushpull was interrupted by UsageError"):
            kv.pull("w")
    kv.close()
