"""Wrong calls of `allreduce` and `allgather`: refused before anything is sent, or on all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ncclkv.errors import (
    CommTimeout,
    DTypeMismatch,
    NotSupported,
    OrderMismatch,
    ShapeMismatch,
    UsageError,
)
from tests.conformance.capabilities import current_buffers
from tests.conformance.expect import check_words, full, intact, probed, refused, same, total
from tests.conformance.late_ranks import SECONDS, is_late
from tests.conformance.registry import SEVERAL, case
from tests.conformance.stores import Stores


@case()
def things_that_are_no_arrays(create: Stores) -> None:
    kv = probed(create)
    for wrong in ("text", b"bytes", None, {"a": 1}, {1.0}, object(), range(3)):
        name = "None" if wrong is None else type(wrong).__name__
        for verb in (kv.allreduce, kv.allgather):
            with refused(kv, UsageError, f"{verb.__name__}: ", name, "is not an array"):
                verb(wrong)
            with refused(kv, UsageError, f"{verb.__name__}: item 1 of the list: ", name):
                verb([full(1), wrong])
    for verb in (kv.allreduce, kv.allgather):
        for empty in ([], ()):
            with refused(kv, UsageError, verb.__name__, "empty list"):
                verb(empty)
        with refused(kv, UsageError, "item 0 of the list", "list is not an array"):
            verb([[full(1)], full(1)])
        with refused(kv, DTypeMismatch, verb.__name__, "<U1", "float32"):
            verb(np.full((2,), "a"))
        with refused(kv, UsageError, verb.__name__, "masked"):
            verb(np.ma.masked_array(full(1), mask=full(0, dtype=bool)))
        with refused(kv, DTypeMismatch, verb.__name__, "Python int", "int64"):
            verb(2**63)
    intact(kv)


@case()
def ops_that_do_not_fit(create: Stores) -> None:
    kv = probed(create)
    for op in ("mean", "", "SUM", None, 3, ["sum"], full(1)):
        with refused(kv, UsageError, "allreduce: op", "sum, avg, max, min, prod"):
            kv.allreduce(full(1), op)
    for op, why in ("max", "no order"), ("min", "no order"), ("prod", "real numbers"):
        with refused(kv, NotSupported, "allreduce: ", op, "complex64", why):
            kv.allreduce(full(1, dtype=np.complex64), op)
        with refused(kv, NotSupported, "allreduce: ", op, "complex128", why):
            kv.allreduce([1.0, 2j], op)
    with refused(kv, NotSupported, "allreduce: avg of bool"):
        kv.allreduce(True, "avg")
    narrow = np.dtype(np.int16)
    words = current_buffers().capabilities.refused(narrow, "sum")
    if words:
        with refused(kv, NotSupported, "allreduce: sum of int16", words):
            kv.allreduce(full(1, dtype=narrow))
    same(kv.allgather(full(kv.rank, (), narrow)), range(kv.num_workers))
    intact(kv)


@case()
def outs_that_cannot_be_written(create: Stores) -> None:
    kv = probed(create)
    frozen, good = full(-1), full(-1)
    frozen.flags.writeable = False
    room = full(-1, (3, 3))
    n = kv.num_workers
    one, two = full(1), [full(1), full(1)]
    calls: list[tuple[type[UsageError], tuple[str, ...], Callable[[], Any]]] = [
        (
            ShapeMismatch,
            ("allreduce: the result", "(2, 3)", "(3, 2)"),
            lambda: kv.allreduce(one, out=full(0, (3, 2))),
        ),
        (
            ShapeMismatch,
            ("allgather: the result", f"({n}, 2, 3)", "(7,)"),
            lambda: kv.allgather(one, out=full(0, (7,))),
        ),
        (
            ShapeMismatch,
            ("allreduce: the result", "()", "(1,)"),
            lambda: kv.allreduce(1.5, out=full(0, (1,))),
        ),
        (UsageError, ("allreduce: out is read-only",), lambda: kv.allreduce(one, out=frozen)),
        (
            UsageError,
            ("item 1 of the list: out is read-only",),
            lambda: kv.allreduce(two, out=[good, frozen]),
        ),
        (UsageError, ("allreduce: out is a Python float",), lambda: kv.allreduce(one, out=1.5)),
        (UsageError, ("out is a NumPy scalar",), lambda: kv.allreduce(1.5, out=np.float64(1))),
        (
            UsageError,
            ("items 0 and 1", "overlap"),
            lambda: kv.allreduce(two, out=[room[:2], room[1:]]),
        ),
        (UsageError, ("out has an array twice",), lambda: kv.allreduce(two, out=[good, good])),
        (
            UsageError,
            ("out must have the form", "a list of 2 arrays"),
            lambda: kv.allreduce(two, out=good),
        ),
        (
            UsageError,
            ("out must have the form", "a list of 2 arrays"),
            lambda: kv.allgather(two, out=[good]),
        ),
        (
            UsageError,
            ("out must have the form", "one array"),
            lambda: kv.allreduce(one, out=[good]),
        ),
        (
            DTypeMismatch,
            ("complex64 into float32", "imaginary"),
            lambda: kv.allreduce(full(1j, dtype=np.complex64), out=good),
        ),
        (
            UsageError,
            ("a value or a gradient in the store",),
            lambda: kv.allreduce(one, out=kv.grad_view(3)),
        ),
    ]
    for kind, words, call in calls:
        with refused(kv, kind, *words):
            call()
    same(good, -1)
    same(room, -1)
    intact(kv)


@case()
def inside_blocks_and_updaters(create: Stores) -> None:
    kv = probed(create)
    for verb in (kv.allreduce, kv.allgather):
        name = verb.__name__
        words = f"{name} was called inside"
        with kv.group(), refused(kv, UsageError, f"{words} a group; call it after its end"):
            verb(1)
        with kv.uneven(), refused(kv, UsageError, f"{words} an uneven block"):
            verb(1)
    seen: list[str] = []

    def update(key: Any, given: Any, stored: Any) -> None:
        with refused(kv, UsageError, "allreduce was called inside an updater"):
            kv.allreduce(given)
        seen.append(key)
        stored[...] = given

    kv.set_updater(update)
    kv.push(3, full(kv.rank + 1))
    assert seen == ([3] if create.updates_here(kv, 3) else [])
    same(kv.pull(3), total(kv))
    kv.close()
    for verb in (kv.allreduce, kv.allgather):
        with refused(kv, UsageError, f"{verb.__name__}: the store", "is closed"):
            verb(1)


@case(sizes=SEVERAL)
def a_refused_call_on_one_rank_fails_there_alone(create: Stores) -> None:
    kv = probed(create)
    if kv.rank == 1:
        with refused(kv, UsageError, "allreduce"):
            kv.allreduce(None)
        with refused(kv, ShapeMismatch, "allreduce"):
            kv.allreduce(full(1), out=full(0, (7,)))
    assert kv.allreduce(1) == kv.num_workers
    intact(kv)


@contextmanager
def mismatch(kv: Any, *words: str) -> Iterator[None]:
    """Expect the error about two calls, with their texts and their lines, on every rank."""
    with pytest.raises(OrderMismatch) as caught:  # noqa: PT012
        yield
        kv.barrier()  # on a GPU the host waits here
    sites = str(caught.value).count("one_off_misuse.py:")
    check_words(caught.value, "the ranks differ in call", *words)
    assert sites == 2, caught.value


@case(sizes=SEVERAL)
def ranks_with_other_arguments(create: Stores) -> None:
    first, second = full(1, (2, 3)), full(1, (3, 2))
    calls: list[tuple[str, str, Callable[[Any], Any], Callable[[Any], Any]]] = [
        (
            "allreduce(float32 (2, 3), op='sum')",
            "allreduce(float32 (3, 2), op='sum')",
            lambda kv: kv.allreduce(first),
            lambda kv: kv.allreduce(second),
        ),
        (
            "allreduce(float32 (2, 3), op='sum')",
            "allreduce(float64 (2, 3), op='sum')",
            lambda kv: kv.allreduce(first),
            lambda kv: kv.allreduce(first.astype(np.float64)),
        ),
        (
            "allreduce(float32 (2, 3), op='max')",
            "allreduce(float32 (2, 3), op='min')",
            lambda kv: kv.allreduce(first, "max"),
            lambda kv: kv.allreduce(first, "min"),
        ),
        (
            "allreduce(float64 (), op='sum')",
            "allreduce(int64 (), op='sum')",
            lambda kv: kv.allreduce(1.0),
            lambda kv: kv.allreduce(1),
        ),
        (
            "allgather(float32 (2, 3))",
            "allreduce(float32 (2, 3), op='sum')",
            lambda kv: kv.allgather(first),
            lambda kv: kv.allreduce(first),
        ),
        (
            "allgather(float32 (2, 3))",
            "allgather(float32 (3, 2))",
            lambda kv: kv.allgather(first),
            lambda kv: kv.allgather(second),
        ),
        (
            "allreduce(float32 (2, 3), float32 (2, 3), op='sum')",
            "allreduce(float32 (2, 3), op='sum')",
            lambda kv: kv.allreduce([first, first]),
            lambda kv: kv.allreduce([first]),
        ),
        (
            "allreduce(int64 (), int64 (), int64 (), ... 5 arrays, 40 bytes, op='sum')",
            "allreduce(int64 (), int64 (), int64 (), ... 4 arrays, 32 bytes, op='sum')",
            lambda kv: kv.allreduce([1] * 5),
            lambda kv: kv.allreduce([1] * 4),
        ),
        (
            "pull(3)",
            "allreduce(float32 (2, 3), op='sum')",
            lambda kv: kv.pull(3),
            lambda kv: kv.allreduce(first),
        ),
    ]
    for mine, theirs, one, other in calls:
        kv = probed(create)
        with mismatch(kv, mine, theirs):
            (other if kv.rank == kv.num_workers - 1 else one)(kv)
        with pytest.raises(OrderMismatch):
            kv.allreduce(1)


@case(sizes=SEVERAL)
def lists_that_differ_after_their_first_arrays(create: Stores) -> None:
    one, turned = full(1, (2, 3)), full(1, (3, 2))
    both = "(item 4 of the list is float32 (", "float32 (2, 3) on rank", "float32 (3, 2) on rank"
    lists: list[tuple[list[Any], list[Any], tuple[str, ...]]] = [
        ([1, 1, 1, 1, 1], [1, 1, 1, 1, 1.0], ("(item 4", "int64 () on rank", "float64 () on rank")),
        ([one] * 5, [*[one] * 4, turned], both),
        ([one] * 5, [one] * 4, ("(item 4", "float32 (2, 3) on rank", "missing on rank")),
    ]
    for mine, theirs, words in lists:
        for verb in ("allreduce", "allgather"):
            kv = create()
            with mismatch(kv, *words):
                getattr(kv, verb)(theirs if kv.rank == 0 else mine)


@case(sizes={4})
def a_rank_that_does_not_arrive(create: Stores) -> None:
    good, kv = probed(create), create(timeout=SECONDS)
    kv.barrier()
    if is_late(kv):
        time.sleep(2 * SECONDS)
    else:
        begin = time.monotonic()
        with pytest.raises(CommTimeout) as caught:
            kv.allreduce(kv.rank)
        assert SECONDS * 0.9 < time.monotonic() - begin < SECONDS + 2
        named = current_buffers().capabilities.missing.format(last=kv.num_workers - 1).strip("; (")
        check_words(caught.value, f"rank {kv.rank} of", named, f"(timeout {SECONDS:g} s)")
        check_words(caught.value, "allreduce(int64 (), op='sum')")
    good.barrier()
    intact(good)
    try:
        kv.close()
    except OrderMismatch as error:
        check_words(error, "called allreduce(int64 (), op='sum')", "called close()")
