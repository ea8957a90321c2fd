"""A lack of memory while the layout is sealed: the next attempt gets the memory of the others."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.comm.shm.segment import MemfdSegment
from ncclkv.errors import OutOfMemory
from ncclkv.testing import run_ranks
from tests.harness.context import context_of

LENGTH = 20_000
KEYS = ["a", "b", "c"]
DTYPES = [np.float64, np.float32, np.float64]
CALLS: list[tuple[str, str, range]] = [
    ("comm", "allocate", range(3)),
    ("comm", "node_shared", range(6)),
    ("kernels", "pack", range(3)),
]
"""Owner and name of a call during the seal, and the numbers of its calls that raise in turn."""


def raise_once(owner: Any, name: str, number: int) -> None:
    """Let the call of this number, from 0, of a method raise MemoryError; other calls work."""
    method, count = getattr(owner, name), iter(range(1000))

    def call(*arguments: Any, **named: Any) -> Any:
        if next(count) == number:
            setattr(owner, name, method)
            raise MemoryError("no memory today")
        return method(*arguments, **named)

    setattr(owner, name, call)


def ones(kv: Any, keys: list[str]) -> list[Any]:
    return [np.full(LENGTH, kv.rank + 1, DTYPES[KEYS.index(key)]) for key in keys]


def steps(kv: Any) -> list[list[float]]:
    """Make two steps with momentum; return the first and last elements of the values of each."""
    made = []
    for _ in range(2):
        kv.push(KEYS, ones(kv, KEYS))
        made.append([float(x) for value in kv.pull(KEYS) for x in (value[0], value[-1])])
    return made


def store() -> Any:
    kv = ncclkv.create("threads", bucket_bytes=8 * LENGTH)
    kv.init(KEYS, [np.zeros(LENGTH, dtype) for dtype in DTYPES])
    kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0, momentum=0.5))
    return kv


@pytest.mark.parametrize(
    ("owner", "name", "number"), [(*call[:2], number) for call in CALLS for number in call[2]]
)
@pytest.mark.parametrize("again", ["push", "value", "grad_view"])
def test_a_second_attempt_gets_the_memory_of_the_other_ranks(
    owner: str, name: str, number: int, again: str
) -> None:
    def body() -> list[list[float]]:
        with store() as kv:
            if kv.rank == 1:
                comm = context_of(kv).comm
                raise_once(comm if owner == "comm" else comm.kernels, name, number)
                first = {
                    "push": lambda: kv.push(KEYS, ones(kv, KEYS)),
                    "value": lambda: kv.value("b"),
                    "grad_view": lambda: kv.grad_view("b"),
                }[again]
                with pytest.raises(MemoryError, match="no memory today"):
                    first()
            return steps(kv)

    # Sums are 6, momenta -6 and -9.
    assert run_ranks(3, body) == [[[-6.0] * 6, [-15.0] * 6]] * 3


def test_keys_added_between_two_attempts_are_in_the_layout_of_the_second() -> None:
    def body() -> list[float]:
        with store() as kv:
            if kv.rank == 1:
                raise_once(context_of(kv).comm, "allocate", 2)
                with pytest.raises(MemoryError, match="no memory today"):
                    kv.value("a")
            kv.init("d", np.zeros(LENGTH))
            kv.push("d", np.full(LENGTH, kv.rank + 1.0))
            assert [step[0] for step in steps(kv)] == [-6.0, -15.0]
            return [float(x) for x in kv.pull("d")[[0, -1]]]

    assert run_ranks(3, body) == [[-6.0, -6.0]] * 3


def test_memory_of_the_node_that_cannot_be_mapped_is_a_lack_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mapped, refused = MemfdSegment.map, threading.local()

    def map_unless_refused(self: MemfdSegment, start: int, nbytes: int) -> Any:
        if getattr(refused, "here", False):
            raise OSError(12, "Cannot allocate memory")
        return mapped(self, start, nbytes)

    monkeypatch.setattr(MemfdSegment, "map", map_unless_refused)

    def body() -> list[list[float]]:
        with store() as kv:
            if kv.rank == 1:
                comm = context_of(kv).comm
                node_shared = comm.node_shared

                def refuse(nbytes: int) -> Any:
                    refused.here = True
                    try:
                        return node_shared(nbytes)
                    finally:
                        refused.here = False

                comm.node_shared = refuse
                with pytest.raises(OutOfMemory) as caught:
                    kv.push(KEYS, ones(kv, KEYS))
                assert str(caught.value) == (
                    "rank 1 of 3: push of 3 keys, 'a' the first: 160,000 bytes that the ranks of "
                    "this node share cannot be mapped ([Errno 12] Cannot allocate memory); give "
                    "this process more address space (ulimit -v) or fewer other mappings"
                )
                del comm.node_shared
            return steps(kv)

    assert run_ranks(3, body) == [[[-6.0] * 6, [-15.0] * 6]] * 3
