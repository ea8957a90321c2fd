"""Wrong arrays: refused before any data moves, with the store unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ncclkv.errors import DTypeMismatch, ShapeMismatch, UsageError
from tests.conformance.expect import full, intact, probed, refused, same
from tests.conformance.registry import case
from tests.conformance.stores import Stores


@case()
def values_of_another_shape(create: Stores) -> None:
    kv = probed(create)
    # Equal sizes, a shape that would broadcast, an additional dimension, no dimensions.
    for shape in ((3, 2), (6,), (1, 3), (2, 3, 1), ()):
        wrong = full(100, shape)
        calls: list[Callable[[], Any]] = [
            lambda wrong=wrong: kv.push(3, wrong),
            lambda wrong=wrong: kv.push(3, [full(100), wrong]),
            lambda wrong=wrong: kv.push([5, 3], [full(100), wrong]),
            lambda wrong=wrong: kv.pushpull(3, wrong, out=full(0)),
            lambda wrong=wrong: kv.pushpull(3, wrong),
            lambda wrong=wrong: kv.reset(3, wrong),
            lambda wrong=wrong: kv.broadcast(3, wrong, full(0)),
        ]
        for call in calls:
            with refused(kv, ShapeMismatch, "3", "(2, 3)", str(shape)):
                call()
        with refused(kv, ValueError, "(2, 3)"):
            kv.push(3, wrong)
    intact(kv)


@case()
def outs_of_another_shape(create: Stores) -> None:
    kv = probed(create)
    for shape in ((3, 2), (6,), (2, 3, 1), (4, 3), ()):
        good, wrong = full(-1), full(-1, shape)
        calls: list[Callable[[], Any]] = [
            lambda wrong=wrong: kv.pull(3, out=wrong),
            lambda good=good, wrong=wrong: kv.pull(3, out=[good, wrong]),
            lambda good=good, wrong=wrong: kv.pull([5, 3], out=[good, wrong]),
            lambda wrong=wrong: kv.pull(3, out=wrong, local=True),
            lambda wrong=wrong: kv.pushpull(3, full(100), out=wrong),
            lambda wrong=wrong: kv.broadcast(3, full(100), wrong),
        ]
        for call in calls:
            with refused(kv, ShapeMismatch, "3", "(2, 3)", str(shape)):
                call()
        same(good, -1)
        same(wrong, full(-1, shape))
    intact(kv)


@case()
def python_numbers_and_other_things_for_keys_with_dimensions(create: Stores) -> None:
    kv = probed(create)
    for wrong in (1, 1.5, True, 2j, "text", b"bytes", None, {"a": 1}, {1}, object()):
        name = "None" if wrong is None else type(wrong).__name__
        calls: list[Callable[[], Any]] = [
            lambda wrong=wrong: kv.push(3, wrong),
            lambda wrong=wrong: kv.push(3, [full(100), wrong]),
            lambda wrong=wrong: kv.push([5, 3], [full(100), wrong]),
            lambda wrong=wrong: kv.pushpull(3, wrong, out=full(0)),
            lambda wrong=wrong: kv.reset(3, wrong),
        ]
        for call in calls:
            with refused(kv, UsageError, "3", name, "array"):
                call()
        if not isinstance(wrong, (int, float, complex)):
            with refused(kv, UsageError, "7", name, "array"):
                kv.init(7, wrong)
            with refused(kv, UsageError, "7", name, "array"):
                kv.broadcast(7, wrong, full(0))
        assert 7 not in kv
    intact(kv)


@case()
def a_list_of_numbers_is_several_values(create: Stores) -> None:
    kv = create()
    kv.init("row", full(2, (3,)))
    with refused(kv, UsageError, "'row'", "float", "asarray"):
        kv.push("row", [1.0, 2.0, 3.0])
    with refused(kv, UsageError, "'new'", "one array", "list of 2"):
        kv.init("new", [1.0, 2.0])
    same(kv.pull("row"), 2)


@case()
def things_that_are_no_outs(create: Stores) -> None:
    kv = probed(create)
    for wrong in (1.5, "text", {"a": 1}, np.float32(0), object()):
        name = type(wrong).__name__
        good = full(-1)
        with refused(kv, UsageError, "3", name):
            kv.pull(3, out=wrong)
        with refused(kv, UsageError, "3", name):
            kv.pull([5, 3], out=[good, wrong])
        with refused(kv, UsageError, "3", name):
            kv.pushpull(3, full(100), out=wrong)
        same(good, -1)
    intact(kv)


@case()
def outs_that_are_read_only(create: Stores) -> None:
    kv = probed(create)
    good, wrong = full(-1), full(-1)
    wrong.flags.writeable = False
    calls: list[Callable[[], Any]] = [
        lambda: kv.pull(3, out=wrong),
        lambda: kv.pull([5, 3], out=[good, wrong]),
        lambda: kv.pushpull(3, full(100), out=wrong),
        lambda: kv.pushpull(3, wrong),
        lambda: kv.broadcast(3, full(100), wrong),
    ]
    for call in calls:
        with refused(kv, UsageError, "3", "read-only"):
            call()
    same(good, -1)
    same(wrong, -1)
    intact(kv)


@case()
def outs_that_overlap(create: Stores) -> None:
    kv = probed(create)
    room = full(-1, (3, 3))
    calls: list[Callable[[], Any]] = [
        lambda: kv.pull([3, 5], out=[room[:2], room[1:]]),
        lambda: kv.pull(3, out=[room[:2], room[1:]]),
        lambda: kv.pull([3, 5], out=[room[:2], room[1::-1]]),
        lambda: kv.pushpull([3, 5], [full(100), full(100)], out=[room[:2], room[1:]]),
        lambda: kv.pushpull([3, 5], [room[:2], room[1:]]),
        lambda: kv.broadcast([3, 5], [full(100)] * 2, [room[:2], room[1:]]),
    ]
    for call in calls:
        with refused(kv, UsageError, "overlap"):
            call()
    same(room, -1)
    intact(kv)


@case()
def an_out_that_overlaps_itself(create: Stores) -> None:
    kv = probed(create)
    line = full(-1, (3,))
    folded = np.lib.stride_tricks.as_strided(line, (2, 3), (0, 4))
    with refused(kv, UsageError, "3", "share memory"):
        kv.pull(3, out=folded)
    same(line, -1)
    intact(kv)


@case()
def masked_arrays(create: Stores) -> None:
    kv = probed(create)
    masked = np.ma.masked_array(full(1), mask=full(0, dtype=bool))
    with refused(kv, UsageError, "3", "mask"):
        kv.push(3, masked)
    with refused(kv, UsageError, "3", "mask"):
        kv.pull(3, out=masked)
    intact(kv)


class Exporter:
    """An object that offers DLPack, and raises when its memory is requested."""

    def __init__(self, asked: str, error: Exception) -> None:
        self._asked, self._error = asked, error

    def __dlpack_device__(self) -> Any:
        if self._asked == "device":
            raise self._error
        return (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        raise self._error

    @property
    def __cuda_array_interface__(self) -> Any:
        raise self._error if self._asked == "kind" else AttributeError


@case()
def exporters_that_raise_errors_of_their_own(create: Stores) -> None:
    kv = probed(create)
    for asked in ("device", "memory", "kind"):
        for error in (KeyError("mine"), OSError("mine"), ZeroDivisionError("mine")):
            thing = Exporter(asked, error)
            for call in (
                lambda thing=thing: kv.push(3, thing),
                lambda thing=thing: kv.pull(3, out=thing),
                lambda thing=thing: kv.init(7, thing),
            ):
                with refused(kv, UsageError, "Exporter", type(error).__name__, "mine"):
                    call()
    intact(kv)


@case()
def strings_of_any_length(create: Stores) -> None:
    kv = probed(create)
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        return  # NumPy has no such strings
    texts = np.full((2, 3), "text", np.dtypes.StringDType())
    for call in (
        lambda: kv.push(3, texts),
        lambda: kv.pull(3, out=texts),
        lambda: kv.init(7, texts),
    ):
        with refused(kv, DTypeMismatch, "StringDType", "float32"):
            call()
    intact(kv)


@case()
def outs_in_values_that_an_updater_has_kept(create: Stores) -> None:
    kv, kept = create(), []
    kv.init("a", full(4))
    kv.set_updater(lambda key, given, stored: kept.append(stored))
    kv.push("a", full(1))
    for stored in kept:
        with pytest.raises(UsageError, match="out is a view of a value in the store"):
            kv.pull("a", out=stored)
    same(kv.pull("a"), 4)
