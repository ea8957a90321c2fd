"""Notes of calls: in Python and in C the same page and the same marks."""

from __future__ import annotations

import gc
import struct
import sys
import weakref
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.comm.diagnosis import call_log
from ncclkv.comm.diagnosis.call_log import MASK, PlainNotes, follow

CALLS = 8
FROM = 16
NBYTES = FROM + CALLS * 40

KINDS = [pytest.param(PlainNotes, id="python")]
if call_log.CompiledNotes is not None:
    KINDS.append(pytest.param(call_log.CompiledNotes, id="c"))

NUMBERS = st.integers(0, MASK)


def made(kind: Any, own: tuple[str, ...] = ()) -> tuple[Any, memoryview]:
    page = memoryview(bytearray(NBYTES))
    return kind(page, 0, FROM, CALLS, own), page


def calls(page: memoryview) -> tuple[int, list[tuple[int, ...]]]:
    """The count, and the calls without their times."""
    rows = struct.iter_unpack("<5q", page[FROM:])
    return struct.unpack_from("<q", page)[0], [row[:4] for row in rows]


def here() -> FrameType:
    """A frame that stands still: that of a function on its way goes on from place to place."""
    return sys._getframe()


def elsewhere() -> FrameType:
    return sys._getframe()


def note(known: Any, what: int, keys: int, mark: int, frame: FrameType) -> int:
    """As a store does: words are learnt when they are wanted."""
    found = known.put(what, keys, mark, frame)
    if found is None:
        known.learn(what, keys, 7, frame)
        found = known.put(what, keys, mark, frame)
    assert found is not None
    return int(found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_is_noted_once_its_words_are_known(kind: Any) -> None:
    known, page = made(kind)
    frame = here()
    assert known.put(3, 4, 0, frame) is None
    assert calls(page)[0] == 0
    known.learn(3, 4, 9, frame)
    assert known.put(3, 4, 5, frame) == follow(5, 3, 4)
    assert calls(page)[0] == 1
    assert calls(page)[1][1] == (1, 3, 4, 9)
    for other in ((2, 4), (3, 5)):
        assert known.put(*other, 0, frame) is None, other
    assert known.put(3, 4, 0, elsewhere()) is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_calls_stay(kind: Any) -> None:
    known, page = made(kind)
    frame = here()
    for number in range(1, 21):
        note(known, number, 0, 0, frame)
    count, rows = calls(page)
    assert count == 20
    assert sorted(rows) == [(number, number, 0, 7) for number in range(13, 21)]


@pytest.mark.parametrize("kind", KINDS)
def test_calls_from_own_files_are_their_callers(kind: Any) -> None:
    known, _ = made(kind, (__file__,))
    frame = sys._getframe()
    outer = frame
    while outer.f_code.co_filename == __file__:
        assert outer.f_back is not None
        outer = outer.f_back
    known.learn(1, 1, 1, outer)
    assert known.put(1, 1, 0, frame) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_places_beyond_those_it_remembers(kind: Any) -> None:
    known, page = made(kind)
    frame = here()
    for number in range(5000):
        note(known, 1, number, 0, frame)
    assert calls(page)[0] == 5000
    assert known.put(1, 4999, 0, frame) is not None
    assert known.put(1, 0, 0, frame) is None


@pytest.mark.parametrize("kind", KINDS)
def test_code_lives_as_long_as_its_place_is_known(kind: Any) -> None:
    # Another code at the same address would be taken for it.
    names: dict[str, Any] = {}
    exec("import sys\ndef place():\n    return sys._getframe()", names)
    code = weakref.ref(names["place"].__code__)
    known, _ = made(kind)
    known.learn(1, 1, 1, names["place"]())
    names.clear()
    gc.collect()
    assert code() is not None
    del known
    gc.collect()
    assert code() is None


@pytest.mark.skipif(call_log.CompiledNotes is None, reason="notes in C were not built")
@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=30))
def test_python_and_c_agree(made_calls: list[tuple[int, int]]) -> None:
    (plain, plain_page), (compiled, compiled_page) = made(PlainNotes), made(call_log.CompiledNotes)
    frame, marks = here(), [0, 0]
    for what, keys in made_calls:
        marks = [
            note(known, what, keys, mark, frame)
            for known, mark in zip((plain, compiled), marks, strict=True)
        ]
        assert marks[0] == marks[1] <= MASK
    assert calls(plain_page) == calls(compiled_page)


@pytest.mark.skipif(call_log.CompiledNotes is None, reason="notes in C were not built")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((memoryview(bytes(NBYTES)), 0, FROM, CALLS, ()), (BufferError, TypeError)),
        ((memoryview(bytearray(NBYTES)), 0, FROM, CALLS + 1, ()), ValueError),
        ((memoryview(bytearray(NBYTES)), 0, FROM, 0, ()), ValueError),
        ((memoryview(bytearray(NBYTES)), -8, FROM, CALLS, ()), ValueError),
        ((memoryview(bytearray(NBYTES)), NBYTES, FROM, 1, ()), ValueError),
        ((memoryview(bytearray(NBYTES)), 0, 4, CALLS, ()), ValueError),
        ((memoryview(bytearray(NBYTES)), 0, FROM, CALLS, []), TypeError),
        ((1, 0, FROM, CALLS, ()), TypeError),
    ],
)
def test_pages_that_c_refuses(arguments: tuple[Any, ...], error: Any) -> None:
    with pytest.raises(error):
        call_log.CompiledNotes(*arguments)


@pytest.mark.skipif(call_log.CompiledNotes is None, reason="notes in C were not built")
def test_calls_that_c_refuses() -> None:
    known, page = made(call_log.CompiledNotes)
    frame = here()
    for arguments in ((1, 2, 3), (1, 2, 3, None), (1, 2.0, 3, frame), (1 << 64, 2, 3, frame)):
        for method in (known.put, known.learn):
            with pytest.raises((TypeError, OverflowError)):
                method(*arguments)
    assert calls(page)[0] == 0
