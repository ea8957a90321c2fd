"""The file of a tracer: its header, and events that are written at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclkv.engine.instrument import Launch
from ncclkv.observe.json_lines import read
from ncclkv.observe.timeline import RankFile, find_offsets, timeline
from ncclkv.observe.tracer import Tracer


@pytest.fixture
def tracer(tmp_path: Path) -> Tracer:
    return Tracer(tmp_path, "dist_sync", "0123abcd", 3, 4)


def test_the_header_is_there_from_the_begin(tracer: Tracer) -> None:
    (header,) = read(tracer.path)
    assert header == {**header, "event": "trace", "format": 1, "rank": 3, "size": 4}
    assert "rank3" in tracer.path.name


@pytest.mark.parametrize(
    "event",
    [
        lambda tracer: tracer.waiting("a barrier", {2, 0}),
        lambda tracer: tracer.failed("CommTimeout: late"),
    ],
)
def test_a_long_wait_and_a_failure_write_what_there_is(
    tracer: Tracer, event: Callable[[Tracer], None]
) -> None:
    tracer.verb("push", 0.5)
    assert len([*read(tracer.path)]) == 1
    event(tracer)
    _, verb, last = read(tracer.path)
    assert verb["name"] == "push"
    assert last.get("ranks", [0, 2]) == [0, 2]


def test_a_launch_has_its_keys_once(tracer: Tracer) -> None:
    for seq in (1, 2):
        tracer.launched(Launch(seq, "allreduce", "keys", 8, 8, 0, ["a", "b"]))
    tracer.launched(Launch(3, "allreduce", "key", 8, 8, 0, ["a"]))
    tracer.stop()
    assert [each.get("keys") for each in read(tracer.path)][1:] == [["a", "b"], None, ["a"]]


def test_a_span_that_ends_after_its_enclosing_span_is_cut() -> None:
    header = {"clock": "c", "at": 0.0, "wall": 0.0, "host": "h", "pid": 1, "rank": 0, "start": 0}
    header |= {"store": "s", "group": "", "size": 1}
    records = [
        {"event": "packed", "at": 1.0, "seconds": 1.000005, "bucket": 0},
        {"event": "verb", "at": 0.5, "seconds": 1.5, "name": "push"},
    ]
    file = RankFile(Path("x"), header, records)
    events = timeline([file], find_offsets([file]))["traceEvents"]
    spans = {each["name"]: each for each in events if each["ph"] == "X"}
    ends = {name: each["ts"] + each["dur"] for name, each in spans.items()}
    assert ends["packed"] <= ends["push"] == pytest.approx(2e6)
    assert json.dumps(events)


def test_collectives_in_flight_at_once_are_on_several_threads() -> None:
    header = {"clock": "c", "at": 0.0, "wall": 0.0, "host": "h", "pid": 1, "rank": 0, "start": 0}
    header |= {"store": "s", "group": "", "size": 1}
    times = {1: (1.0, 3.0), 2: (2.0, 4.0), 3: (3.5, 5.0)}
    records = []
    for seq, (begin, end) in times.items():
        launch = Launch(seq, "allreduce", "key", 8, 8)._asdict()
        records.append({"event": "launched", "at": begin, "seconds": 0.0, **launch})
        records.append({"event": "completed", "at": begin, "seconds": end - begin, "seq": seq})
    file = RankFile(Path("x"), header, records)
    events = timeline([file], find_offsets([file]))["traceEvents"]
    spans = {each["args"]["seq"]: each for each in events if each["ph"] == "X"}
    assert {seq: each["dur"] for seq, each in spans.items()} == pytest.approx(
        {seq: 1e6 * (end - begin) for seq, (begin, end) in times.items()}
    )
    assert spans[1]["tid"] == spans[3]["tid"] != spans[2]["tid"]
