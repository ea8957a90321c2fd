"""Memory of a neighbour that cannot be mapped: the rank that fails says why."""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.comm.shm.segment import MemfdSegment
from ncclkv.errors import CommAborted, CommError, RankLost
from ncclkv.testing import run_ranks

KINDS: dict[int, tuple[type[CommError], str]] = {
    errno.ENOMEM: (
        CommAborted,
        "give rank 1 more address space (ulimit -v) or fewer other mappings",
    ),
    errno.ENOENT: (RankLost, "look at whether rank 0 still runs"),
}


@pytest.mark.parametrize("number", KINDS)
def test_the_error_is_about_the_rank_that_failed(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped, refused = MemfdSegment.map, threading.local()

    def map_unless_refused(self: MemfdSegment, start: int, nbytes: int) -> Any:
        if getattr(refused, "here", False):
            raise OSError(number, os.strerror(number))
        return mapped(self, start, nbytes)

    monkeypatch.setattr(MemfdSegment, "map", map_unless_refused)
    kind, advice = KINDS[number]

    def body() -> None:
        kv = ncclkv.create("threads")
        kv.init("w", np.zeros(20_000))
        kv.grad_view("w")
        kv.barrier()
        refused.here = kv.rank == 1
        with pytest.raises(CommError) as caught:
            kv.pushpull("w", np.ones(20_000))
        refused.here = False
        kv.close()
        text = (
            f"rank 1: the memory of rank 0 cannot be mapped ([Errno {number}] "
            f"{os.strerror(number)}); {advice}"
        )
        if kv.rank == 1:
            assert type(caught.value) is kind
            assert str(caught.value) == text
        else:
            assert type(caught.value) is RankLost
            assert f"farewell: {kind.__name__}: {text}" in str(caught.value)

    run_ranks(2, body)
