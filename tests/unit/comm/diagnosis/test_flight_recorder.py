"""Pages of the flight recorder: read during writes, after the writer's death, and when old."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from ncclkv.comm.diagnosis import call_ring, flight_recorder
from ncclkv.comm.diagnosis.call_ring import CALLS
from ncclkv.comm.diagnosis.flight_recorder import NBYTES, FlightRecorder
from ncclkv.comm.diagnosis.reports import RecordedCall, Report, describe_last_call, first_difference
from tests.harness.source import ROOT


def _frame() -> FrameType:
    return sys._getframe()


FRAME = _frame()
"""Call site of all calls in these tests."""

WRITER = """
import mmap, sys, time
import numpy as np
from ncclkv.comm.diagnosis.flight_recorder import NBYTES, FlightRecorder

with open(sys.argv[1], "r+b") as file:
    page = np.frombuffer(mmap.mmap(file.fileno(), NBYTES), np.uint8)
board = FlightRecorder(3, {3: page})
frame = (lambda: sys._getframe())()
calls = []
for what in range(500):
    calls.append(board.log.intern(what, 2 * what, f"push({what}) at train.py:7", frame))
count = int(sys.argv[2])
number = 0
while number != count:
    number += 1
    board.log.append(calls[number % 500], 0)
    if number == 100:
        print("ready", flush=True)
time.sleep(60)
"""


def page() -> np.ndarray:
    return np.zeros(NBYTES, np.uint8)


def note(own: FlightRecorder, what: int, keys: int, text: str) -> None:
    """Append a call; write its text when it is new."""
    own.log.append(own.log.find(what, keys, FRAME) or own.log.intern(what, keys, text, FRAME), 0)


def noted(own: FlightRecorder, count: int) -> None:
    """Append calls that are numbers without texts."""
    for _ in range(count):
        number = own.log.count + 1
        note(own, number, 2 * number, f"call {number}")


class Writer:
    """A process that appends calls to a page until it is killed."""

    def __init__(self, folder: Path, count: int) -> None:
        path = folder / "page"
        path.write_bytes(bytes(NBYTES))
        with path.open("r+b") as file:
            shared = np.frombuffer(mmap.mmap(file.fileno(), NBYTES), np.uint8)
        self.board = FlightRecorder(0, {0: page(), 3: shared})
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(count)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


def test_a_page_holds_the_last_calls_of_a_dead_process(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 100)
    writer.kill()
    report = writer.board.read(3)
    assert report.label.startswith("rank 3 on ")
    assert report.label.endswith(f"(pid {writer.process.pid})")
    assert [call.call_index for call in report.calls] == list(range(1, 101))
    assert report.calls[-1].text == "push(100) at train.py:7"
    assert 0 <= report.calls[-1].age < 30


def test_a_page_read_during_a_write_is_consistent(tmp_path: Path) -> None:
    writer = Writer(tmp_path, -1)
    try:
        limit, newest = time.monotonic() + 1.0, 0
        while time.monotonic() < limit:
            for call in writer.board.read(3).calls:
                what = call.call_index % 500
                assert (call.code, call.keys) == (what, 2 * what)
                assert call.text == f"push({what}) at train.py:7"
            (latest,) = writer.board.read(3, 1).calls[-1:] or [RecordedCall(newest, 0, 0, "", 0)]
            assert latest.call_index >= newest
            newest = latest.call_index
        assert newest > CALLS, "the writer was too slow to write over anything"
    finally:
        writer.kill()


def test_a_record_overwritten_by_another_call_is_left_out() -> None:
    own = FlightRecorder(0, {0: page()})
    noted(own, 5)
    torn = flight_recorder._LOG_FROM + call_ring._COUNT_BYTES + 3 * call_ring._CALL.size
    call_ring._CALL.pack_into(own._own, torn, 3 + CALLS, 0, 0)
    assert [call.call_index for call in own.read(0).calls] == [1, 2, 4, 5]


@pytest.mark.parametrize("count", [0, 1, CALLS - 2, CALLS - 1, CALLS, CALLS + 1, 3 * CALLS + 7])
def test_the_last_calls_are_kept(count: int) -> None:
    own = FlightRecorder(0, {0: page()})
    noted(own, count)
    calls = own.read(0).calls
    first = max(1, count - CALLS + 2)
    assert [call.call_index for call in calls] == list(range(first, count + 1))
    assert [call.text for call in calls] == [f"call {number}" for number in range(first, count + 1)]
    assert [call.call_index for call in own.read(0, 2).calls] == [
        number for number in (count - 1, count) if number > 0
    ]


def test_texts_are_kept_while_a_recorded_call_uses_them() -> None:
    own = FlightRecorder(0, {0: page()})
    expected: list[str] = []
    # Texts are used again just before their rows are, and after that.
    old = range(call_ring._RECENT)
    for which in [*old, *old[:700], *range(old.stop, old.stop + 300), *old[:700]]:
        note(own, which, 0, f"call {which}")
        expected.append(f"call {which}")
        if len(expected) % 20 == 0:
            texts = [call.text for call in own.read(0).calls]
            assert texts == expected[-len(texts) :]


def test_long_texts_and_texts_with_odd_characters() -> None:
    own = FlightRecorder(0, {0: page()})
    for what, text in enumerate(
        ("", "ä" * 500, "x" * 159 + "ä", "\N{SNOWMAN}" * 53 + "xé", "bad \udcff name")
    ):
        note(own, what, 0, text)
        said = own.read(0, 1).calls[0].text
        shown = text.encode(errors="replace")[: flight_recorder._TEXT_BYTES].decode(
            errors="replace"
        )
        assert said == shown


def test_a_rank_without_a_page_is_not_contained() -> None:
    own = FlightRecorder(1, {1: page(), 2: page()})
    assert 1 in own
    assert 2 in own
    assert 0 not in own


def test_an_unwritten_page_has_no_calls() -> None:
    own = FlightRecorder(0, {0: page(), 1: page()})
    assert own.read(1).calls == []


def test_a_page_is_read_while_a_thread_writes() -> None:
    own = FlightRecorder(0, {0: page()})
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            noted(own, 10)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(50):
            for call in own.read(0).calls:
                assert (call.code, call.keys) == (call.call_index, 2 * call.call_index)
    finally:
        over.set()
        thread.join()


def test_a_wait_in_another_store_is_named() -> None:
    own = FlightRecorder(0, {0: page()})
    assert own.read(0).other_wait is None
    own.record_other_wait("a reduction of key 'w'", ["host/1/2", "host/3/4"])
    elsewhere = own.read(0).other_wait
    assert elsewhere is not None
    assert elsewhere.description == "a reduction of key 'w'"
    assert elsewhere.names == ["host/1/2", "host/3/4"]
    assert 0 <= elsewhere.age < 5


def test_a_wait_in_this_store_is_not_named() -> None:
    own = FlightRecorder(0, {0: page()})
    assert own.read(0).wait is None
    own.record_wait({40, 3, *range(5, 30)}, "a reduction of key 'w'", 2.5)
    wait = own.read(0).wait
    assert wait is not None
    assert (wait.total, wait.ranks) == (27, [3, *range(5, 20)]), "the lowest of them"
    assert wait.description == "a reduction of key 'w'"
    assert wait.seconds == pytest.approx(2.5, abs=1e-6)
    assert 0 <= wait.age < 5
    own.clear_wait()
    assert own.read(0).wait is None


# Sources of compared reports


def made(*whats: int, first: int = 1) -> list[RecordedCall]:
    return [
        RecordedCall(first + place, what, 0, f"call {what}", 0.0)
        for place, what in enumerate(whats)
    ]


def test_the_first_differing_call_is_found() -> None:
    pair = first_difference(made(1, 2, 3, 4), made(1, 2, 7, 8))
    assert pair is not None
    assert [call.code for call in pair] == [3, 7]


def test_calls_with_other_keys_differ() -> None:
    mine, theirs = made(1), [made(1)[0]._replace(keys=5)]
    assert first_difference(mine, theirs) == (mine[0], theirs[0])


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ([], []),
        (made(1, 2), []),
        (made(1, 2), made(1)),
        (made(1), made(1, 2)),
        (made(1, 2), made(3, 4, first=3)),
        (made(8, 9, first=10), made(1, 9, first=11)[:0]),
    ],
)
def test_no_difference_in_the_calls_that_both_pages_hold(
    mine: list[RecordedCall], theirs: list[RecordedCall]
) -> None:
    assert first_difference(mine, theirs) is None


def test_calls_are_compared_by_index() -> None:
    pair = first_difference(made(5, 6, 7, first=5), made(4, 5, 6, 8, first=4))
    assert pair is not None
    assert pair[0].call_index == 7


def test_the_last_call_is_described() -> None:
    call = RecordedCall(4, 0, 0, "push('w') at a.py:3", 2.345)
    report = Report("node7/9/1", "rank 1 on node7 (pid 9)", [call], None)
    said = "rank 1 on node7 (pid 9) last called push('w') at a.py:3, 2.3 s ago"
    assert describe_last_call(report) == said
