"""Objects of Python between ranks: random programs against a plain model, and the log of calls."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncclkv
from ncclkv.errors import CommAborted, RankLost, UsageError
from ncclkv.store import objects
from ncclkv.testing import run_ranks
from tests.harness.extent import examples
from tests.unit.store.recorded_calls import last, noted, on_two_ranks

pytestmark = pytest.mark.limit(60)

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.binary(max_size=2000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
TOO_LONG, UNPICKLABLE = "too long", "unpicklable"
BAD = {TOO_LONG: lambda: bytes(5000), UNPICKLABLE: lambda: lambda: None}
"""Objects that are refused, with a limit of 4,000 bytes."""

offered = st.one_of(plain, plain, st.sampled_from([*BAD]).map(lambda name: ("bad", name)))
calls = st.tuples(st.none() | st.integers(0, 3), st.lists(offered, min_size=4, max_size=4))
"""The root, or None of `allgather_object`; and the objects of four ranks."""


def is_bad(obj: Any) -> bool:
    return isinstance(obj, tuple)


def modelled(root: int | None, objs: list[Any]) -> Any:
    """Return the result on every rank; or the rank and the kind of the object that is refused."""
    sent = [(root, objs[root])] if root is not None else [*enumerate(objs)]
    for rank, obj in sent:
        if is_bad(obj):
            return ("refused", rank, obj[1])
    return copy.deepcopy(objs if root is None else objs[root])


def made(kv: Any, root: int | None, objs: list[Any]) -> Any:
    """Make the call on a rank; return its result, or what the error names."""
    obj = objs[kv.rank]
    mine = BAD[obj[1]]() if is_bad(obj) else obj
    try:
        return kv.allgather_object(mine) if root is None else kv.broadcast_object(mine, root)
    except UsageError as error:
        kind = TOO_LONG if "bytes when pickled" in str(error) else UNPICKLABLE
        return ("refused", int(str(error).split("the object of rank ")[1].split(",")[0]), kind)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(st.integers(1, 4), st.lists(calls, min_size=1, max_size=6))
def test_random_programs(size: int, program: list[Any]) -> None:
    def body() -> list[Any]:
        with ncclkv.create("threads", timeout=10) as kv:
            return [
                made(kv, None if root is None else root % size, objs[:size])
                for root, objs in program
            ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "MAX_BYTES", 4000)
        every = run_ranks(size, body, timeout=10)
    want = [modelled(None if root is None else root % size, objs[:size]) for root, objs in program]
    assert every == [want] * size


def test_calls_are_recorded_with_their_root() -> None:
    def body(kv: Any) -> list[str]:
        texts = []
        for call in (
            lambda: kv.broadcast_object(1),
            lambda: kv.broadcast_object(2, root=1),
            lambda: kv.allgather_object(3),
        ):
            before = noted(kv)
            call()
            count, digest = noted(kv)
            assert (count, digest != before[1]) == (before[0] + 1, True)
            texts.append(last(kv).text.partition(" at ")[0])
        return texts

    want = ["broadcast_object(root=0)", "broadcast_object(root=1)", "allgather_object()"]
    assert on_two_ranks(body) == [want] * 2


def test_a_wrong_root_is_not_recorded() -> None:
    def body(kv: Any) -> None:
        before = noted(kv)
        with pytest.raises(UsageError, match="root=2 is not a rank; give an int from 0 to 1"):
            kv.broadcast_object(1, root=2)
        assert noted(kv) == before

    on_two_ranks(body)


def test_a_verb_while_an_object_is_unpickled_is_refused() -> None:
    global _store

    def body(kv: Any) -> None:
        with pytest.raises(UsageError, match="barrier was called inside broadcast_object"):
            kv.broadcast_object(CallsTheStore())
        assert kv.broadcast_object(1) == 1

    with ncclkv.create("local") as _store:
        body(_store)


_store: Any = None


def _call() -> None:
    _store.barrier()


class CallsTheStore:
    def __reduce__(self) -> Any:
        return _call, ()


class Interrupted:
    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


@pytest.mark.parametrize("verb", ["allgather_object", "broadcast_object"])
def test_ctrl_c_while_an_object_is_pickled_breaks_the_store(verb: str) -> None:
    """Check that later calls do not meet the peers' call that this rank has left out."""

    def body() -> None:
        with ncclkv.create("threads", timeout=20) as kv:
            call = getattr(kv, verb)
            if kv.rank == 0:
                with pytest.raises(KeyboardInterrupt):
                    call(Interrupted())
                with pytest.raises(CommAborted, match=f"{verb} was interrupted by Keyboard"):
                    call(2)
            else:
                with pytest.raises(RankLost):
                    call(1)

    run_ranks(2, body)
