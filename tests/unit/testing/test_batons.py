"""Batons: threads and greenlets take the same turns."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import ncclkv
from ncclkv.comm.host.threads import is_rank
from ncclkv.testing import Seeded, batons, run_ranks, start_thread
from tests.harness.slow import stretched

GREENLETS = pytest.importorskip("greenlet", reason="greenlet is not installed")


def body() -> list[float]:
    with ncclkv.create("dist") as kv:
        kv.init(["a", "b"], [np.zeros(3), np.zeros(300)])
        with kv.overlap():
            thread = start_thread(kv.push, "a", np.full(3, kv.rank + 1.0))
            kv.push("b", np.full(300, kv.rank + 1.0))
            thread.join()
        kv.barrier()
        return [float(kv.pull(key)[0]) for key in ("a", "b")]


@pytest.fixture
def on_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def choose() -> None:
        monkeypatch.setattr(batons, "choose", lambda threads: batons.SystemThreads())

    return choose


@pytest.mark.parametrize("seed", range(25))
def test_threads_and_greenlets_take_the_same_turns(
    seed: int, on_threads: Callable[[], None]
) -> None:
    assert isinstance(batons.choose(threads=False), batons.Greenlets)
    world = Seeded(seed)
    assert run_ranks(3, body, world=world) == [[6.0, 6.0]] * 3
    traced = world.sha256, world.points, world.seconds
    on_threads()
    assert run_ranks(3, body, world=world) == [[6.0, 6.0]] * 3
    assert (world.sha256, world.points, world.seconds) == traced


def test_the_thread_that_runs_a_world_of_greenlets_is_no_rank_afterwards() -> None:
    assert run_ranks(2, is_rank, world=Seeded(0)) == [True, True]
    assert not is_rank()


def test_no_thread_is_left(on_threads: Callable[[], None]) -> None:
    before = threading.active_count()
    on_threads()
    run_ranks(3, body, world=Seeded(0))
    assert threading.active_count() <= before


def test_ctrl_c_ends_the_ranks(on_threads: Callable[[], None]) -> None:
    on_threads()
    before = threading.active_count()

    def forever() -> None:
        with ncclkv.create("dist") as kv:
            while True:
                kv.barrier()

    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    begin = time.monotonic()
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_ranks(2, forever, world=Seeded(0))
    finally:
        signal.signal(signal.SIGINT, previous)
    timer.join()
    assert time.monotonic() - begin < stretched(1.5)
    assert threading.active_count() <= before
