"""Logs of calls: the intern of texts, the oldest calls kept, and the owner of each call."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv import frames
from ncclkv.comm.diagnosis import call_ring
from ncclkv.comm.diagnosis.call_ring import CALLS, MASK, NBYTES, CallRing
from tests.harness.extent import examples

NUMBERS = st.integers(0, MASK)

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")


def next_digest(digest: int, code: int, keys: int) -> int:
    """Return the digest after one more call, by its definition."""
    term = (code * 0xBF58476D1CE4E5B9 + keys + 1) & MASK
    return (digest * 0x9E3779B97F4A7C15 + term) & MASK


def made() -> tuple[CallRing, memoryview]:
    page = memoryview(bytearray(NBYTES))
    return CallRing(page), page


def calls(page: memoryview) -> list[tuple[int, int, int, str]]:
    """Return the calls without their times."""
    return [call[:4] for call in call_ring.read_calls(page)]


def here() -> FrameType:
    """Return a finished frame: its line does not change any more."""
    return sys._getframe()


def elsewhere() -> FrameType:
    return sys._getframe()


def note(log: CallRing, what: int, keys: int, mark: int, frame: FrameType) -> int:
    """Append a call as a store does: texts are interned when they are new."""
    call = log.find(what, keys, frame) or log.intern(what, keys, f"call {what}", frame)
    return log.append(call, mark)


def test_a_call_is_recorded_after_its_text_is_interned() -> None:
    log, page = made()
    frame = here()
    assert log.find(3, 4, frame) is None
    call = log.intern(3, 4, "words", frame)
    assert log.count == 0
    assert log.find(3, 4, frame) is call
    assert log.append(call, 5) == next_digest(5, 3, 4)
    assert log.count == 1
    assert calls(page) == [(1, 3, 4, "words")]
    for what, keys in ((2, 4), (3, 5)):
        assert log.find(what, keys, frame) is None
    assert log.find(3, 4, elsewhere()) is None


def test_the_last_calls_are_kept() -> None:
    log, page = made()
    frame = here()
    for number in range(1, CALLS + 21):
        note(log, number, 0, 0, frame)
    assert log.count == CALLS + 20
    assert calls(page) == [
        (number, number, 0, f"call {number}") for number in range(22, CALLS + 21)
    ]


def test_calls_from_package_files_count_for_their_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = made()
    frame = sys._getframe()
    outer = frame
    while outer.f_code.co_filename == __file__:
        assert outer.f_back is not None
        outer = outer.f_back
    monkeypatch.setattr(frames, "_own", [])
    frames.skip_frames(str(Path(__file__).parent))
    try:
        call = log.intern(1, 1, "words", frame)
        assert log.find(1, 1, outer) is call
        assert log.repeat(call, 0, outer) is not None
    finally:
        frames._is_own.cache_clear()


def test_more_call_sites_than_the_cache_holds() -> None:
    log, page = made()
    frame = here()
    last = call_ring._MAX_INTERNED + 2000
    for number in range(last + 1):
        note(log, 1, number, 0, frame)
    assert log.count == last + 1
    assert log.find(1, last, frame) is not None
    assert log.find(1, 0, frame) is None
    assert [keys for _, _, keys, _ in calls(page)[-2:]] == [last - 1, last]


def test_a_prepared_call_is_repeated_from_its_line_alone() -> None:
    log, page = made()
    frame = here()
    call = log.intern(3, 4, "words", frame)
    assert log.repeat(call, 5, frame) == next_digest(5, 3, 4)
    assert log.repeat(call, 0, elsewhere()) is None
    assert log.repeat(call, 0, sys._getframe()) is None
    assert calls(page) == [(1, 3, 4, "words")]


@pytest.mark.parametrize("items", ["", "'a', 'b'"])
def test_an_old_text_is_written_again_unless_it_has_items(items: str) -> None:
    log, page = made()
    frame = here()
    call = log.intern(1, 0, "call 1", frame, items)
    for number in range(1, call_ring._RECENT):
        log.intern(1, number, "another", frame)
    assert log.repeat(call, 0, frame) is not None
    log.intern(1, call_ring._RECENT, "another", frame)
    assert log.repeat(call, 0, frame) is None
    # The text of the repeated call stays as long as the call is on the page.
    for number in range(CALLS - 2):
        note(log, 2, number, 0, frame)
    assert calls(page)[0] == (1, 1, 0, "call 1")
    again = log.find(1, 0, frame)
    if items:
        assert again is None
        return
    assert again is not None
    for number in range(CALLS):
        note(log, 3, number, 0, frame)
    assert log.repeat(again, 5, frame) == next_digest(5, 1, 0)
    assert calls(page)[-1][1:] == (1, 0, "call 1")


def test_code_objects_live_as_long_as_their_call_site() -> None:
    # Python could put another code object at a freed address.
    names: dict[str, Any] = {}
    exec("import sys\ndef place():\n    return sys._getframe()", names)
    code = weakref.ref(names["place"].__code__)
    log, _ = made()
    log.intern(1, 1, "words", names["place"]())
    names.clear()
    gc.collect()
    assert code() is not None
    del log
    gc.collect()
    assert code() is None


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=30))
def test_all_codes_of_63_bits_can_be_recorded(made_calls: list[tuple[int, int]]) -> None:
    log, page = made()
    frame, mark = here(), 0
    for what, keys in made_calls:
        before = mark
        mark = note(log, what, keys, mark, frame)
        assert mark == next_digest(before, what, keys)
        assert 0 <= mark <= MASK
    assert calls(page) == [
        (number, what, keys, f"call {what}")
        for number, (what, keys) in enumerate(made_calls, start=1)
    ]
