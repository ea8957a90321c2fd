"""Objects of Python between the ranks: `broadcast_object` and `allgather_object`."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclkv.errors import OrderMismatch, UsageError
from ncclkv.store.objects import MAX_BYTES
from tests.conformance.expect import check_words, full, intact, probed, pulled, refused, same, total
from tests.conformance.registry import SEVERAL, case
from tests.conformance.stores import Stores

KINDS: tuple[Callable[[int], Any], ...] = (
    lambda rank: None,
    lambda rank: rank,
    lambda rank: "text of some length " * 100 * rank,
    lambda rank: b"\x00" * (3 * rank),
    lambda rank: {"rank": rank, "names": [f"file {n}" for n in range(rank)], (1, 2): {3.5, "x"}},
    lambda rank: [rank, [rank, [rank, (None, True, 1j, 2**100)]]],
    lambda rank: range(rank, 10),
    lambda rank: ValueError(f"rank {rank}"),
    lambda rank: bytes(500_000 + rank),
)
"""Objects of a rank: of several types, short and long."""


def comparable(obj: Any) -> Any:
    """Return an object that equals that of an equal object; two exceptions are never equal."""
    return (type(obj), obj.args) if isinstance(obj, Exception) else (type(obj), obj)


@case()
def objects_of_every_kind(create: Stores) -> None:
    kv = probed(create)
    n = kv.num_workers
    for kind in KINDS:
        every = [comparable(kind(rank)) for rank in range(n)]
        got = kv.allgather_object(kind(kv.rank))
        assert type(got) is list
        assert [*map(comparable, got)] == every
        for root in range(n):
            assert comparable(kv.broadcast_object(kind(kv.rank), root)) == every[root]
            mine = kind(root) if kv.rank == root else None
            assert comparable(kv.broadcast_object(mine, root=root)) == every[root]
    intact(kv)


@case()
def the_root_is_rank_0_unless_named(create: Stores) -> None:
    kv = create()
    assert kv.broadcast_object(["rank", kv.rank]) == ["rank", 0]
    assert kv.broadcast_object(kv.rank, np.int64(kv.num_workers - 1)) == kv.num_workers - 1


@case()
def copies_are_returned_on_every_rank(create: Stores) -> None:
    kv = create()
    mine = {"list": [kv.rank]}
    gathered, sent = kv.allgather_object(mine), kv.broadcast_object(mine)
    gathered[kv.rank]["list"].append("changed")
    sent["list"].append("changed")
    assert mine == {"list": [kv.rank]}
    assert kv.broadcast_object(mine) == {"list": [0]}


@case()
def arrays_in_objects(create: Stores) -> None:
    kv = create()
    for rank, each in enumerate(kv.allgather_object({"w": np.full((2, 3), kv.rank, np.int16)})):
        assert (each["w"].dtype, each["w"].tolist()) == (np.int16, [[rank] * 3] * 2)


@case()
def pushes_that_wait_stay(create: Stores) -> None:
    kv = probed(create)
    kv.push(3, full(kv.rank + 1))
    assert kv.allgather_object(kv.rank) == list(range(kv.num_workers))
    kv.push(5, full(1))
    assert kv.broadcast_object("x") == "x"
    same(pulled(kv, 3), total(kv))
    same(pulled(kv, 5), kv.num_workers)


@case()
def a_random_state_for_all(create: Stores) -> None:
    kv = create()
    generator = random.Random(kv.rank)
    generator.setstate(kv.broadcast_object(generator.getstate()))
    assert len(set(kv.allgather_object(generator.random()))) == 1


@case()
def too_long_objects_are_refused_on_every_rank(create: Stores) -> None:
    kv = probed(create)
    last = kv.num_workers - 1
    words = f"the object of rank {last}, a bytes, has 16,777,217 bytes when pickled, and 16,777,216"
    around = len(pickle.dumps(bytes(MAX_BYTES))) - MAX_BYTES
    longest = bytes(MAX_BYTES - around)
    own = longest + b"x" if kv.rank == last else None
    with refused(kv, UsageError, f"allgather_object: {words}", "give arrays to allgather"):
        kv.allgather_object(own)
    with refused(kv, UsageError, f"broadcast_object: {words}"):
        kv.broadcast_object(own, root=last)
    got = kv.broadcast_object(longest if kv.rank == 0 else None)
    assert len(got) == len(longest)
    intact(kv)


class Unpicklable:
    def __reduce__(self) -> Any:
        raise ZeroDivisionError("in the middle")


def fail(error: type[Exception]) -> Any:
    raise error("at the end")


class Broken:
    """An object whose unpickling raises an error."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return fail, (self.error,)


@case()
def objects_that_cannot_be_pickled_are_refused_on_every_rank(create: Stores) -> None:
    kv = probed(create)
    last = kv.num_workers - 1
    with refused(
        kv, UsageError, f"the object of rank {last}, a function, cannot be pickled", "plain data"
    ):
        kv.allgather_object((lambda: 1) if kv.rank == last else 1)
    with refused(kv, UsageError, "rank 0, a Unpicklable, cannot be pickled: ZeroDivisionError: in"):
        kv.broadcast_object(Unpicklable())
    for call in (kv.allgather_object, kv.broadcast_object):
        said = f"{call.__name__}: the object of rank 0 cannot be unpickled here: "
        with refused(kv, UsageError, f"{said}ZeroDivisionError: at the end"):
            call(Broken(ZeroDivisionError))
        with refused(kv, UsageError, f"{said}AttributeError", "a module that all ranks import"):
            call(Broken(AttributeError))
    assert kv.broadcast_object(1) == 1
    intact(kv)


@case()
def roots_that_are_no_ranks(create: Stores) -> None:
    kv = probed(create)
    n = kv.num_workers
    for root in (-1, n, None, 0.0, "0", True, 10**50):
        with refused(kv, UsageError, "broadcast_object: root=", f"from 0 to {n - 1}"):
            kv.broadcast_object(1, root)
    intact(kv)


@case()
def objects_inside_blocks_and_updaters(create: Stores) -> None:
    kv = probed(create)
    for verb in (kv.broadcast_object, kv.allgather_object):
        words = f"{verb.__name__} was called inside"
        with kv.group(), refused(kv, UsageError, f"{words} a group; call it after its end"):
            verb(1)
        with kv.uneven(), refused(kv, UsageError, f"{words} an uneven block"):
            verb(1)
        with kv.overlap([3], missing="zeros"), refused(kv, UsageError, f"{words} an overlap block"):
            verb(1)

    def update(key: Any, given: Any, stored: Any) -> None:
        with refused(kv, UsageError, "allgather_object was called inside an updater"):
            kv.allgather_object(1)
        stored[...] = given

    kv.set_updater(update)
    kv.push(3, full(kv.rank + 1))
    same(kv.pull(3), total(kv))


@case(sizes=SEVERAL)
def ranks_that_make_other_calls(create: Stores) -> None:
    calls: list[tuple[str, str, Callable[[Any], Any], Callable[[Any], Any]]] = [
        (
            "broadcast_object(root=0)",
            "broadcast_object(root=1)",
            lambda kv: kv.broadcast_object(1),
            lambda kv: kv.broadcast_object(1, root=1),
        ),
        (
            "broadcast_object(root=0)",
            "allgather_object()",
            lambda kv: kv.broadcast_object(1),
            lambda kv: kv.allgather_object(1),
        ),
        (
            "allgather_object()",
            "allgather(int64 ())",
            lambda kv: kv.allgather_object(1),
            lambda kv: kv.allgather(1),
        ),
        ("pull(3)", "allgather_object()", lambda kv: kv.pull(3), lambda kv: kv.allgather_object(1)),
        (
            "barrier()",
            "broadcast_object(",
            lambda kv: kv.barrier(),
            lambda kv: kv.broadcast_object(1),
        ),
    ]
    for mine, theirs, one, other in calls:
        kv = probed(create)
        with pytest.raises(OrderMismatch) as caught:  # noqa: PT012
            (other if kv.rank == kv.num_workers - 1 else one)(kv)
            kv.barrier()  # on a GPU the host waits here
        check_words(caught.value, "the ranks differ in call", mine, theirs)
        assert str(caught.value).count("objects.py:") == 2, caught.value
        with pytest.raises(OrderMismatch):
            kv.allgather_object(1)
