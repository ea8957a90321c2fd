"""Copies of short arrays lie in memory that neighbours map; later programs use it again."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ncclkv.comm.shm.allocator import Offset
from ncclkv.comm.shm.copies import CopyPool, ProgramCopies
from ncclkv.comm.shm.staging import INLINE_BYTES
from ncclkv.comm.types import Buffer


class OneNode:
    """The memory of one rank.

    Parameters
    ----------
    left : int
        Number of allocations that succeed.
    """

    def __init__(self, left: int = 9) -> None:
        self.taken: list[Buffer] = []
        self._left = left

    def allocate(self, nbytes: int) -> Buffer | None:
        if len(self.taken) == self._left:
            return None
        self.taken.append(np.zeros(nbytes, np.uint8))
        return self.taken[-1]

    def offset_of(self, array: Buffer) -> Offset | None:
        for number, each in enumerate(self.taken):
            if each.ctypes.data == array.ctypes.data:
                return Offset(number, each.size, 0)
        return None

    def content(self, offset: Offset | None, dtype: str, count: int) -> list[float]:
        """Return the elements at an offset."""
        assert offset is not None
        return self.taken[offset.start].view(dtype)[:count].tolist()


def made(node: OneNode) -> ProgramCopies:
    return ProgramCopies(node)  # type: ignore[arg-type]


def test_copies_are_made_in_turn() -> None:
    node = OneNode()
    own = made(node)
    first = own.make(0, np.arange(5.0))
    second = own.make(1, np.arange(7, dtype=np.int16))
    assert node.content(first, "f8", 5) == [*range(5)]
    assert node.content(second, "i2", 7) == [*range(7)]
    assert own.make(0, np.arange(3, dtype=np.int16)) == first
    assert node.content(second, "i2", 7) == [*range(7)]


def test_a_longer_array_gets_a_longer_copy() -> None:
    node = OneNode()
    own = made(node)
    for nbytes in (1, 4096, 4097, 5000, INLINE_BYTES):
        assert own.make(0, np.zeros(nbytes, np.uint8)) is not None
    assert [each.size for each in node.taken] == [4096, 8192, INLINE_BYTES]


@pytest.mark.parametrize("nbytes", [0, INLINE_BYTES + 1])
def test_empty_and_long_arrays_are_not_copied(nbytes: int) -> None:
    node = OneNode()
    assert made(node).make(0, np.zeros(nbytes, np.uint8)) is None
    assert node.taken == []


def test_nothing_is_copied_without_memory() -> None:
    own = made(OneNode(left=1))
    assert own.make(0, np.zeros(9)) is not None
    assert own.make(1, np.zeros(9)) is None
    assert own.make(0, np.zeros(9)) is not None


def test_memory_for_messages_grows() -> None:
    own = made(OneNode())
    assert own.received(0).size == 0
    first = own.received(100)
    assert own.received(50).ctypes.data == first.ctypes.data
    assert own.received(200).size == 200


def test_the_pool_lends_what_it_got_back() -> None:
    pool = CopyPool(OneNode())  # type: ignore[arg-type]
    one, other = pool.take(), pool.take()
    assert one is not other
    read = True
    pool.give_back(one, SimpleNamespace(is_complete=lambda: not read))  # type: ignore[arg-type]
    assert pool.take() not in (one, other)
    read = False
    assert pool.take() is one
    assert pool.take() not in (one, other)
