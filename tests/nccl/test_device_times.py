"""Layer 2, recording stand-in, not NCCL: times of collectives on a GPU's stream."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

import ncclkv
from ncclkv.comm.nccl.stream_clock import Mark, StreamClock
from ncclkv.observe.timeline import find_offsets, read_files, timeline
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.stores import StandInStores

pytestmark = pytest.mark.limit(30)


class Device(ncclkv.Instrument):
    """Records the launches, and the times on the GPU."""

    def __init__(self) -> None:
        self.launches: list[int] = []
        self.times: list[tuple[int, float, float]] = []

    def launched(self, launch: Any) -> None:
        self.launches.append(launch.seq)

    def device(self, seq: int, begin: float, seconds: float) -> None:
        self.times.append((seq, begin, begin + seconds))


def steps(worker: Worker, kv: Any, count: int) -> None:
    for _ in range(count):
        kv.push("w", worker.streams.put(np.ones(64, np.float32)))
        kv.pull("w", worker.streams.put(np.zeros(64, np.float32)))


@pytest.mark.parametrize("lazy", [False, True])
def test_each_collective_gets_its_times_in_a_later_verb(lazy: bool) -> None:
    def body(worker: Worker) -> None:
        with StandInStores(worker, "every_rank") as create:
            kv, device = create(), Device()
            kv.init("w", np.zeros(64, np.float32))
            steps(worker, kv, 1)
            kv.add_instrument(device)
            begin = time.perf_counter()
            steps(worker, kv, 3)
            kv.wait()
            end = time.perf_counter()
            for _ in range(2):  # a lazy device has reached nothing at the first look
                kv.wait()
            assert [seq for seq, *_ in device.times] == device.launches == [2, 3, 4]
            for _, first, last in device.times:
                assert begin <= first <= last <= end
            kv.remove_instrument(device)
            steps(worker, kv, 1)
            kv.wait()
            assert len(device.times) == 3

    run_on_standin(2, body, lazy=lazy)


def test_a_captured_step_takes_no_times() -> None:
    def body(worker: Worker) -> None:
        with StandInStores(worker, "every_rank") as create:
            kv, device = create(), Device()
            kv.init("w", np.zeros(64, np.float32))
            kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=1.0))
            gradient = worker.streams.put(np.ones(64, np.float32))
            out = worker.streams.put(np.zeros(64, np.float32))
            kv.push("w", gradient)
            kv.pull("w", out)
            kv.add_instrument(device)
            with kv.capture() as step:
                kv.push("w", gradient)
                kv.pull("w", out)
            step.replay()
            kv.wait()
            assert device.times == []

    run_on_standin(2, body)


def test_a_timeline_has_the_collectives_of_the_gpu(tmp_path: Path) -> None:
    def body(worker: Worker) -> None:
        with StandInStores(worker, "every_rank") as create:
            kv = create()
            kv.init("w", np.zeros(64, np.float32))
            with kv.trace(tmp_path):
                steps(worker, kv, 3)
                kv.close()

    run_on_standin(2, body)
    files = read_files(tmp_path)
    events = timeline(files, find_offsets(files))["traceEvents"]
    threads = {
        (each["pid"], each["tid"])
        for each in events
        if each["name"] == "thread_name" and "on the GPU" in each["args"]["name"]
    }
    sums = [each for each in events if each["name"] == "allreduce"]
    assert len(sums) == 2 * 3
    assert {(each["pid"], each["tid"]) for each in sums} == threads
    assert all(each["ph"] == "X" for each in sums)


class Scripted:
    """Streams whose device is some time behind the host, and has a clock of its own.

    Attributes
    ----------
    delay : float
        Time from the record of an event until the device reaches it.
    """

    communication = 1000

    def __init__(self) -> None:
        self.delay = 0.0

    def record_timed(self, stream: int) -> Any:
        reached = time.perf_counter() + self.delay

        class Event:
            at = reached

            def done(self) -> bool:
                return True

        return Event()

    def seconds(self, first: Any, second: Any) -> float:
        # CUDA's numbers are milliseconds in 32 bits.
        return 1e-3 * float(np.float32(1e3 * (second.at - first.at)))


def test_an_idle_stream_gives_exact_times(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr("ncclkv.concurrency.perf_counter", lambda: now[0])
    streams: Any = Scripted()
    clock = StreamClock(streams, lambda: False)
    for delay, error in ((5.0, 5.0), (2.0, 2.0), (1e-5, 2e-5), (3.0, 2e-5)):
        streams.delay = delay
        begin: Mark = clock.mark()
        now[0] += 1e-3
        end = clock.mark()
        now[0] += 20.0  # later times count from a later event
        found = clock.times(begin, end)
        assert found is not None
        assert 0 <= begin.event.at - found[0] + 1e-5 <= error + 1e-5  # type: ignore[attr-defined]
        assert abs((found[1] - found[0]) - 1e-3) < 1e-5


def test_no_event_is_queried_in_a_capture() -> None:
    streams: Any = Scripted()
    captures = [True]
    clock = StreamClock(streams, lambda: captures[0])
    begin, end = clock.mark(), clock.mark()
    assert clock.times(begin, end) is None
    captures[0] = False
    assert clock.times(begin, end) is not None
