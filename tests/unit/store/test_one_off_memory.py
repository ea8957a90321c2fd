"""Memory of calls without keys: kept by kind, within a limit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclkv.comm.solo import SoloCommunicator
from ncclkv.errors import NotSupported
from ncclkv.store import one_off_memory
from ncclkv.store.one_off_memory import Kind, OneOffMemory, OneOffMemoryCache

F4, I8, F2 = np.dtype("f4"), np.dtype("i8"), np.dtype("f2")

forms = st.tuples(st.sampled_from([F4, I8, F2]), st.lists(st.integers(0, 4), max_size=3).map(tuple))


@pytest.fixture
def comm() -> SoloCommunicator:
    return SoloCommunicator(5.0)


def of(count: int, op: str = "sum") -> Kind:
    return Kind("allreduce", op, ((F4, (count,)),))


@given(st.lists(forms, min_size=1, max_size=6).map(tuple))
def test_each_array_has_a_slot_of_its_own(arrays: tuple[tuple[np.dtype, tuple[int, ...]]]) -> None:
    made = OneOffMemory(SoloCommunicator(5.0), Kind("allreduce", "sum", arrays))
    dtypes = list(dict.fromkeys(dtype for dtype, _ in arrays))
    assert len(made.collectives) == len(made.sizes) == len(dtypes)
    for number, ((dtype, shape), slot) in enumerate(zip(arrays, made.slots, strict=True)):
        assert (slot.dtype, slot.shape) == (dtype, (int(np.prod(shape)),))
        slot[...] = number
    for number, slot in enumerate(made.slots):
        assert (slot == number).all()
    assert sum(made.sizes) == sum(slot.nbytes for slot in made.slots)


def test_calls_of_one_kind_share_memory(comm: SoloCommunicator) -> None:
    cache = OneOffMemoryCache(comm)
    first = cache.find(of(3))
    assert cache.find(of(3)) is first
    others = [of(4), of(3, "max"), Kind("allgather", "", ((F4, (3,)),))]
    assert all(cache.find(kind) is not first for kind in others)
    assert cache.find(of(3)) is first


def test_the_oldest_memory_is_dropped(
    comm: SoloCommunicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_off_memory, "BYTES", 3 * cache_bytes(1000))
    cache = OneOffMemoryCache(comm)
    first, second, third = (cache.find(of(1000, op)) for op in ("sum", "max", "min"))
    assert cache.find(of(1000)) is first  # now the last used
    cache.find(of(1000, "prod"))
    assert cache.find(of(1000)) is first
    assert cache.find(of(1000, "min")) is third
    assert cache.find(of(1000, "max")) is not second


def test_memory_beyond_the_limit_is_not_kept(
    comm: SoloCommunicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_off_memory, "BYTES", 2 * cache_bytes(1000))
    cache = OneOffMemoryCache(comm)
    small = cache.find(of(1000))
    assert cache.find(of(100_000)) is not cache.find(of(100_000))
    assert cache.find(of(1000)) is small


def cache_bytes(count: int) -> int:
    return OneOffMemory(SoloCommunicator(5.0), of(count)).nbytes


def test_reductions_that_do_not_exist_are_refused(comm: SoloCommunicator) -> None:
    kind = Kind("allreduce", "max", ((F4, ()), (np.dtype("c8"), ())))
    with pytest.raises(NotSupported, match="allreduce: max of complex64"):
        OneOffMemoryCache(comm).find(kind)


def test_texts_show_three_arrays_and_codes_hold_all(comm: SoloCommunicator) -> None:
    arrays = [(I8, ()), (F4, (2, 3)), (F4, (0,)), (F4, (4,))]
    made = OneOffMemory(comm, Kind("allreduce", "max", tuple(arrays)))
    other = OneOffMemory(comm, Kind("allreduce", "max", (*arrays[:3], (F4, (2, 2)))))
    assert made.label == other.label
    assert made.label == (
        "allreduce(int64 (), float32 (2, 3), float32 (0,), ... 4 arrays, 48 bytes, op='max')"
    )
    assert made.logged.code != other.logged.code
    again = OneOffMemory(comm, Kind("allreduce", "max", tuple(arrays)))
    assert again.logged.code == made.logged.code


def test_texts_differ_by_the_bytes_of_arrays_that_they_do_not_show(comm: SoloCommunicator) -> None:
    for shape in (), (5,):
        made = OneOffMemory(comm, Kind("allgather", "", (*[(F4, ())] * 3, (F4, shape), (I8, ()))))
        nbytes = 24 if shape == () else 40
        assert made.label.endswith(f"float32 (), ... 5 arrays, {nbytes} bytes)")
