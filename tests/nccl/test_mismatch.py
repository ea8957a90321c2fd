"""Layer 2, recording stand-in, not NCCL: ranks whose calls differ, which NCCL does not check.

For equal sizes NCCL would sum one key into another; without a launch on one rank the others would
hang. The hosts find the difference at their next wait.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from ncclkv.errors import OrderMismatch, SpecMismatch
from tests.conformance.capabilities import current_buffers, use_buffers
from tests.conformance.expect import check_words, full
from tests.harness.context import context_of
from tests.harness.slow import stretched
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.buffers import StandInBuffers
from tests.nccl.standin.stores import StandInStores

pytestmark = pytest.mark.limit(30)

SECONDS = stretched(2.0)
ODD = 1
NAME = re.escape(Path(__file__).name)
CALLED = re.compile(rf"rank (\d) called (.+?) at \S*{NAME}:(\d+)")

Scenario = Callable[[Any, bool], None]


def put(value: float = 1) -> Any:
    """Return an array of the device."""
    return current_buffers().put(full(value))


def swapped_pushes(kv: Any, odd: bool) -> None:
    first, second = ("b", "a") if odd else ("a", "b")
    kv.push(first, put())
    kv.push(second, put())
    kv.wait()


def another_key_of_the_same_size(kv: Any, odd: bool) -> None:
    out = put(0)
    kv.pushpull("b" if odd else "a", put(), out=out)
    kv.wait()


def keys_of_other_sizes(kv: Any, odd: bool) -> None:
    key, shape = ("large", (5000,)) if odd else ("a", (2, 3))
    kv.push(key, current_buffers().put(full(1, shape)))
    kv.wait()


def missing_push(kv: Any, odd: bool) -> None:
    kv.push("a", put())
    if not odd:
        kv.push("b", put())
    kv.barrier()


def missing_key_of_a_list(kv: Any, odd: bool) -> None:
    keys = ["a"] if odd else ["a", "b"]
    kv.push(keys, [put() for _ in keys])
    kv.wait()


def missing_push_in_a_group(kv: Any, odd: bool) -> None:
    with kv.group():
        kv.push("a", put())
        if not odd:
            kv.push("b", put())
    kv.wait()


def another_priority(kv: Any, odd: bool) -> None:
    kv.push(["a", "b"], [put(), put()], priority=int(odd))
    kv.wait()


def extra_pull(kv: Any, odd: bool) -> None:
    kv.push("a", put())
    if odd:
        kv.pull("a", out=put(0))
    kv.push("b", put())
    kv.pull("b", out=full(0))


def fewer_steps(kv: Any, odd: bool) -> None:
    for _ in range(3 if odd else 4):
        kv.pushpull("a", put(), out=put(0))
    kv.barrier()


def fewer_steps_and_close(kv: Any, odd: bool) -> None:
    for _ in range(3 if odd else 4):
        kv.pushpull("a", put(), out=put(0))
    kv.close()


def barrier_against_push(kv: Any, odd: bool) -> None:
    if odd:
        kv.barrier()
    kv.pushpull("a", put(), out=full(0))


def updater_against_push(kv: Any, odd: bool) -> None:
    if odd:
        kv.set_updater(lambda key, total, stored: None)
    kv.pushpull("a", put(), out=full(0))


CALLS: dict[Scenario, tuple[str, str]] = {
    swapped_pushes: ("push('a')", "push('b')"),
    another_key_of_the_same_size: ("pushpull('a')", "pushpull('b')"),
    keys_of_other_sizes: ("push('a')", "push('large')"),
    missing_push: ("push('b')", "barrier()"),
    missing_key_of_a_list: ("push('a', 'b')", "push('a')"),
    missing_push_in_a_group: ("end of a group('a', 'b')", "end of a group('a')"),
    another_priority: ("push('a', 'b')", "push('a', 'b', priority=1)"),
    extra_pull: ("push('b')", "pull('a')"),
    fewer_steps: ("pushpull('a')", "barrier()"),
    fewer_steps_and_close: ("pushpull('a')", "close()"),
    barrier_against_push: ("pushpull('a')", "barrier()"),
    updater_against_push: ("pushpull('a')", "set_updater()"),
}
"""Calls of most ranks, and the differing rank's call instead."""


def raised(worker: Worker, update_on: str, scenario: Scenario, **options: Any) -> str:
    """Return a rank's error in a scenario, raised in time; the store is broken afterwards."""
    worker.broken_on_purpose = True
    with use_buffers(StandInBuffers(worker)), StandInStores(worker, update_on) as create:
        kv = create(**options)
        kv.init(["a", "b", "large"], [full(0), full(0), full(0, (5000,))])
        kv.barrier()
        begin = time.monotonic()
        with pytest.raises(OrderMismatch) as caught:
            scenario(kv, kv.rank == ODD)
        assert time.monotonic() - begin < SECONDS
        with pytest.raises(OrderMismatch):
            kv.barrier()
    return str(caught.value)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("update_on", ["every_rank", "root"])
@pytest.mark.parametrize("scenario", CALLS, ids=lambda scenario: scenario.__name__)
def test_every_rank_names_both_calls(scenario: Scenario, update_on: str, size: int) -> None:
    usual, odd = CALLS[scenario]
    for said in run_on_standin(size, lambda worker: raised(worker, update_on, scenario)):
        called = dict(call[:2] for call in CALLED.findall(said))
        assert called.pop(str(ODD), None) == odd, said
        assert list(called.values()) == [usual], said


def test_a_rank_that_works_after_another_call_is_found_by_a_wait_for_the_device() -> None:
    found = threading.Event()

    def scenario(kv: Any, odd: bool) -> None:
        kv.push("b" if odd else "a", put())
        if odd:
            assert found.wait(10 * SECONDS)
        kv.wait()

    def body(worker: Worker) -> None:
        said = raised(worker, "every_rank", scenario)
        found.set()
        assert f"rank {ODD} called push('b')" in said

    run_on_standin(2, body)


@pytest.mark.parametrize("scenario", [swapped_pushes, another_key_of_the_same_size])
def test_keys_that_share_no_bucket(scenario: Scenario) -> None:
    def body(worker: Worker) -> str:
        return raised(worker, "every_rank", scenario, bucket_bytes=0)

    for said in run_on_standin(2, body, lazy=True):
        assert f"rank {ODD} called push" in said


def test_work_queued_before_a_mismatch_does_not_block_another_store() -> None:
    def body(worker: Worker) -> float:
        said = raised(worker, "every_rank", swapped_pushes)
        assert "the ranks differ in call" in said
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create()
            kv.init("a", full(0))
            out = full(0)
            kv.pushpull("a", put(kv.rank + 1), out=out)
            return float(out.sum())

    assert run_on_standin(2, body) == [18.0, 18.0]


@pytest.mark.parametrize("shape", [(3, 2), (7,)])
def test_specs_at_init(shape: tuple[int, ...]) -> None:
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create()
            with pytest.raises(SpecMismatch) as caught:
                kv.init("a", full(0, shape) if kv.rank == ODD else full(0))
            check_words(caught.value, "'a'", "(2, 3)", str(shape), f"rank {ODD}")

    run_on_standin(3, body)


def captured(kv: Any) -> Any:
    """Return a step of one key that was run once and then captured."""
    gradient, out = put(), put(0)
    kv.pushpull("a", gradient, out=out)
    with kv.capture() as step:
        kv.pushpull("a", gradient, out=out)
        kv.push("b", gradient)
        kv.pull("b", out=out)
    return step


def test_captured_calls_are_not_recorded_but_replays_are() -> None:
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            kv = create()
            kv.init(["a", "b"], [full(0), full(0)])
            kv.pushpull("b", put(), out=put(0))
            recorder = context_of(kv).comm.calls.recorder
            before = recorder.log.count
            step = captured(kv)
            texts = [call.text.partition(" at ")[0] for call in recorder.read(kv.rank).calls]
            assert texts[before:] == ["pushpull('a')", "capture()"]
            for _ in range(3):
                step.replay()
            assert recorder.log.count == before + 5
            kv.wait()

    run_on_standin(2, body)


def test_ranks_that_replay_another_number_of_times() -> None:
    def fewer_replays(kv: Any, odd: bool) -> None:
        kv.pushpull("b", put(), out=put(0))
        step = captured(kv)
        for _ in range(2 if odd else 3):
            step.replay()
        kv.barrier()

    for said in run_on_standin(3, lambda worker: raised(worker, "every_rank", fewer_replays)):
        called = dict(call[:2] for call in CALLED.findall(said))
        assert called.pop(str(ODD), None) == "barrier()", said
        assert list(called.values()) == ["replay()"], said
