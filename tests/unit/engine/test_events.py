"""Instruments: which events they receive, with which times, and an exception in one of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv import concurrency
from ncclkv.comm.types import Work
from ncclkv.engine.events import Events
from ncclkv.engine.instrument import Instrument, Launch
from ncclkv.errors import CommTimeout, UsageError
from tests.harness.context import context_of


class Log(Instrument):
    """Records all events."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def verb(self, name: str, seconds: float) -> None:
        self.events.append(("verb", name, seconds))

    def launched(self, launch: Launch) -> None:
        self.events.append(("launched", *launch[:5]))

    def completed(self, seq: int, seconds: float) -> None:
        self.events.append(("completed", seq, seconds))

    def waited(self, seq: int, seconds: float) -> None:
        self.events.append(("waited", seq, seconds))

    def late(self, seq: int, rank: int, seconds: float) -> None:
        self.events.append(("late", seq, rank, seconds))


class Verbs(Instrument):
    """Records the names of verbs, and wants nothing else."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def verb(self, name: str, seconds: float) -> None:
        assert 0 <= seconds < 60
        self.names.append(name)


class Failing(Verbs):
    """Raises an exception at its first verb."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def verb(self, name: str, seconds: float) -> None:
        super().verb(name, seconds)
        raise self._error


class Launched(Work):
    """A collective; to wait for it takes 2 seconds of the test's clock."""

    def __init__(self, clock: Clock, arrivals: dict[int, float] | None = None) -> None:
        self._clock = clock
        self._arrivals = arrivals or {}
        self.error: Exception | None = None

    def done(self) -> bool:
        return self._clock.now > 14

    def arrivals(self) -> dict[int, float]:
        return self._arrivals

    def wait(self, timeout: float | None = None) -> None:
        self._clock.now += 2
        if self.error is not None:
            raise self.error


class Clock:
    """A clock that stands still between waits."""

    now = 10.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(concurrency, "perf_counter", lambda: made.now)
    return made


@pytest.fixture
def kv() -> Iterator[ncclkv.KVStore]:
    with ncclkv.create("local") as store:
        store.init("w", np.zeros(4, "f4"))
        yield store


def events_of(kv: ncclkv.KVStore) -> Events:
    return context_of(kv).engine.events


def launch(events: Events, work: Work) -> Work:
    """Launch a collective of 16 bytes, of which 8 are sent."""
    return events.launch(lambda: work, "allreduce", "bucket 0, key 'w'", 16, 8)


def test_an_instrument_receives_what_it_overrides_alone() -> None:
    events, verbs, log = Events(), Verbs(), Log()
    assert events.listeners == {}
    events.add(verbs)
    assert events.listeners == {"verb": [verbs]}
    events.add(log)
    assert events.listeners.keys() == {"verb", "launched", "completed", "waited", "late"}
    assert events.listeners["late"] == [log]
    events.add(Instrument())
    assert events.listeners["verb"] == [verbs, log]


def test_a_removed_instrument_receives_nothing() -> None:
    events, verbs, log = Events(), Verbs(), Log()
    events.add(verbs)
    events.add(log)
    events.remove(log)
    assert events.listeners == {"verb": [verbs]}
    events.remove(log)
    events.remove(verbs)
    assert events.listeners == {}
    events.emit("verb", "push", 1.0)
    assert (verbs.names, log.events) == ([], [])


def test_a_collective_is_counted_and_named_without_an_instrument(clock: Clock) -> None:
    events, log = Events(), Log()
    work = Launched(clock, {})
    assert launch(events, work) is work
    assert (events.sequence, work.label) == (1, "bucket 0, key 'w'")
    events.add(log)
    launch(events, Launched(clock, {}))
    assert log.events == [("launched", 2, "allreduce", "bucket 0, key 'w'", 16, 8)]


def test_a_collective_from_launch_to_the_end_of_its_wait(clock: Clock) -> None:
    events, log = Events(), Log()
    events.add(log)
    work = launch(events, Launched(clock, {2: 7.0, 0: 7.25, 1: 7.75}))
    assert log.events == [("launched", 1, "allreduce", "bucket 0, key 'w'", 16, 8)]
    assert work.label == "bucket 0, key 'w'"
    assert work.arrivals() == {2: 7.0, 0: 7.25, 1: 7.75}
    clock.now += 5
    assert work.done()
    work.wait()
    assert log.events[1:] == [("waited", 1, 2.0), ("completed", 1, 7.0), ("late", 1, 1, 0.5)]


@pytest.mark.parametrize("arrivals", [{}, {3: 1.0}])
def test_no_rank_is_late_if_arrival_times_are_unknown(clock: Clock, arrivals: Any) -> None:
    events, log = Events(), Log()
    events.add(log)
    launch(events, Launched(clock, arrivals)).wait()
    assert [event[0] for event in log.events] == ["launched", "waited", "completed"]


def test_a_collective_keeps_its_number(clock: Clock) -> None:
    events, log = Events(), Log()
    events.add(log)
    first, second = (launch(events, Launched(clock)) for _ in range(2))
    second.wait()
    first.wait()
    assert [event[1] for event in log.events if event[0] == "completed"] == [2, 1]


def test_a_failed_wait_completes_nothing(clock: Clock) -> None:
    events, log = Events(), Log()
    events.add(log)
    failing = Launched(clock)
    failing.error = CommTimeout("late")
    with pytest.raises(CommTimeout):
        launch(events, failing).wait()
    assert [event[0] for event in log.events] == ["launched"]


def test_the_host_has_no_times_of_a_gpu(clock: Clock) -> None:
    events, log = Events(), Log()
    events.add(log)
    work = Launched(clock)
    work.blocks = False
    assert launch(events, work) is work
    work.wait()
    assert [event[0] for event in log.events] == ["launched"]


def test_a_collective_without_instruments_is_not_wrapped(clock: Clock) -> None:
    work = Launched(clock)
    assert launch(Events(), work) is work
    assert work.label == "bucket 0, key 'w'"


def test_verbs_by_name(kv: ncclkv.KVStore) -> None:
    verbs = Verbs()
    kv.push("w", np.ones(4, "f4"))
    events_of(kv).add(verbs)
    kv.push("w", np.ones(4, "f4"))
    kv.pull("w")
    with kv.group():
        kv.push("w", np.ones(4, "f4"))
    kv.wait()
    events_of(kv).remove(verbs)
    kv.wait()
    assert verbs.names == ["push", "pull", "group", "push", "group", "wait"]


def test_a_verb_that_raises_ends_and_a_refused_verb_does_not_begin(kv: ncclkv.KVStore) -> None:
    verbs = Verbs()
    events_of(kv).add(verbs)
    with pytest.raises(UsageError):
        kv.push("w", np.ones(5, "f4"))
    with kv.group(), pytest.raises(UsageError, match="inside a group"):
        kv.wait()
    assert verbs.names == ["push", "group", "group"]


def test_a_sum_is_launched_and_completed(kv: ncclkv.KVStore) -> None:
    log = Log()
    kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
    events_of(kv).add(log)
    for _ in range(2):
        kv.push("w", np.ones(4, "f4"))
    kv.wait()
    launches = [event for event in log.events if event[0] == "launched"]
    assert launches == [("launched", seq, "allreduce", "key 'w'", 256, 0) for seq in (1, 2)]
    assert [event[1] for event in log.events if event[0] == "completed"] == [1, 2]
    assert kv.pull("w").tolist() == [-2.0] * 4


def test_an_instrument_that_raises_is_removed_and_logged(
    kv: ncclkv.KVStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "ncclkv")
    failing, verbs = Failing(ValueError("full disk")), Verbs()
    events_of(kv).add(failing)
    events_of(kv).add(verbs)
    kv.push("w", np.full(4, 3.0, "f4"))
    assert kv.pull("w").tolist() == [3.0] * 4
    assert failing.names == ["push"]
    assert verbs.names == ["push", "pull"]
    (record,) = caplog.records
    assert "Failing" in record.getMessage()
    assert "raised in verb, and was removed" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is failing._error


def test_an_interrupt_in_an_instrument_reaches_the_program(kv: ncclkv.KVStore) -> None:
    failing = Failing(KeyboardInterrupt())
    events_of(kv).add(failing)
    with pytest.raises(KeyboardInterrupt):
        kv.push("w", np.ones(4, "f4"))
    events_of(kv).remove(failing)
    assert kv.pull("w").tolist() == [1.0] * 4


def test_an_instrument_cannot_call_a_verb(
    kv: ncclkv.KVStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Calling(Instrument):
        def verb(self, name: str, seconds: float) -> None:
            kv.wait()

    class CallingFirst(Instrument):
        def begun(self, name: str) -> None:
            kv.wait()

    for instrument in (Calling(), CallingFirst()):
        caplog.clear()
        kv.add_instrument(instrument)
        kv.push("w", np.ones(4, "f4"))
        assert events_of(kv).listeners == {}
        (record,) = caplog.records
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], UsageError)
        assert "wait was called inside push" in str(record.exc_info[1])
        assert kv.pull("w").tolist() == [1.0] * 4


class Parts(Instrument):
    """Records the parts of verbs, without times."""

    def __init__(self) -> None:
        self.parts: list[tuple[object, ...]] = []
        self.launches: list[Launch] = []

    def begun(self, name: str) -> None:
        self.parts.append(("begun", name))

    def verb(self, name: str, seconds: float) -> None:
        self.parts.append(("verb", name))

    def packed(self, bucket: int, keys: Any, nbytes: int, seconds: float) -> None:
        assert seconds >= 0
        self.parts.append(("packed", bucket, sorted(keys), nbytes))

    def launched(self, launch: Launch) -> None:
        self.launches.append(launch)
        self.parts.append(("launched", launch.seq))

    def updated(self, label: str, seconds: float) -> None:
        assert seconds >= 0
        self.parts.append(("updated", label))

    def unpacked(self, bucket: int | None, nbytes: int, seconds: float) -> None:
        assert seconds >= 0
        self.parts.append(("unpacked", bucket, nbytes))


def test_the_parts_of_a_step_in_their_order(kv: ncclkv.KVStore) -> None:
    parts = Parts()
    kv.init("b", np.zeros(2, "f4"))
    kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
    kv.add_instrument(parts)
    kv.push(["w", "b"], [np.ones(4, "f4"), np.ones(2, "f4")])
    kv.pull("w")
    assert parts.parts == [
        ("begun", "push"),
        ("packed", 0, ["b", "w"], 24),
        ("launched", 1),
        ("verb", "push"),
        ("begun", "pull"),
        ("updated", "keys 'w' to 'b' of bucket 0"),
        ("unpacked", 0, 16),
        ("verb", "pull"),
    ]
    assert parts.launches == [
        Launch(1, "allreduce", "keys 'w' to 'b' of bucket 0", 512, 0, 0, ["w", "b"])
    ]


def test_a_store_without_an_updater_packs_into_its_values(kv: ncclkv.KVStore) -> None:
    parts = Parts()
    kv.add_instrument(parts)
    kv.push("w", np.ones(4, "f4"))
    assert ("packed", 0, ["w"], 16) in parts.parts


def test_a_function_as_updater_is_timed_for_all_keys(kv: ncclkv.KVStore) -> None:
    def update(key: Any, sums: Any, stored: Any) -> None:
        stored += sums

    parts = Parts()
    kv.set_updater(update)
    kv.add_instrument(parts)
    kv.push("w", np.ones(4, "f4"))
    assert ("updated", "'w'") in parts.parts


def test_updates_by_norms_are_timed(kv: ncclkv.KVStore) -> None:
    parts = Parts()
    kv.set_optimizer(ncclkv.optimizer.LAMB(learning_rate=1.0))
    kv.add_instrument(parts)
    kv.push("w", np.ones(4, "f4"))
    kv.wait()
    assert ("updated", "LAMB, by norms") in parts.parts


def test_keys_of_scattered_ranges(kv: ncclkv.KVStore) -> None:
    keys = [f"k{number:02}" for number in range(40)]
    kv.init(keys, [np.zeros(4, "f4")] * 40)
    kv.value("k00")
    parts = Parts()
    kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
    kv.add_instrument(parts)
    kv.push(keys[::2], [np.ones(4, "f4")] * 20)
    kv.wait()
    (launch,) = parts.launches
    assert launch.keys == keys[::2]


def test_only_instruments_are_added(kv: ncclkv.KVStore) -> None:
    other: Any = Verbs
    with pytest.raises(UsageError, match="rank 0 of 1: add_instrument takes an object of a sub"):
        kv.add_instrument(other)


def test_an_instrument_that_is_added_twice_is_called_once(kv: ncclkv.KVStore) -> None:
    verbs = Verbs()
    kv.add_instrument(verbs)
    kv.add_instrument(verbs)
    kv.wait()
    kv.remove_instrument(verbs)
    kv.remove_instrument(verbs)
    kv.wait()
    assert verbs.names == ["wait"]
