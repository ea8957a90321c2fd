"""`run_ranks`: its ranks, results and refusals, and the choice of the error that it raises."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import (
    CommTimeout,
    LaunchError,
    OrderMismatch,
    RankLost,
    SpecMismatch,
    UsageError,
)
from ncclkv.testing import Seeded, run_ranks
from tests.conformance.expect import check_words
from tests.conformance.readme import check_first_program


def number() -> int:
    """Return this thread's rank."""
    return int(threading.current_thread().name.removeprefix("rank "))


def test_a_body_that_is_no_function_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        run_ranks(2, "train")  # type: ignore[arg-type]
    assert str(caught.value) == "run_ranks: body is a str; give a function: run_ranks(2, body)"


async def coroutine() -> None:
    """Return at once."""


def generator() -> Iterator[int]:
    yield 3


@pytest.mark.parametrize("body", [coroutine, generator])
def test_a_body_that_would_run_nothing_is_refused(body: Any) -> None:
    with pytest.raises(UsageError, match="runs nothing; give a function that runs it, as lambda: "):
        run_ranks(2, body)


def test_results_come_in_rank_order() -> None:
    def body(factor: int) -> int:
        time.sleep(0.02 * (3 - number()))
        return number() * factor

    assert run_ranks(3, body, 10) == [0, 10, 20]


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "3", None])
def test_wrong_sizes_are_refused(size: Any) -> None:
    ran: list[int] = []
    with pytest.raises(UsageError) as caught:
        run_ranks(size, ran.append, 1)
    check_words(caught.value, f"run_ranks: size={size!r} is not an int of 1 or more; give one")
    assert ran == []


def test_a_wrong_timeout_is_refused_before_any_rank_runs() -> None:
    ran: list[int] = []
    with pytest.raises(UsageError, match="timeout=0 is not a number of seconds"):
        run_ranks(2, ran.append, 1, timeout=0)
    assert ran == []


def test_the_first_cause_is_raised_before_its_consequences() -> None:
    def body() -> None:
        kv = ncclkv.create("threads")
        if kv.rank == 2:
            raise ZeroDivisionError("mine")
        kv.barrier()

    with pytest.raises(ZeroDivisionError) as caught:
        run_ranks(3, body)
    check_words(caught.value, "mine", "on rank 2 of 3")


def test_of_several_causes_the_lowest_ranks_wins() -> None:
    def body() -> None:
        if number() > 0:
            raise ValueError(f"of {number()}")

    with pytest.raises(ValueError, match="of 1") as caught:
        run_ranks(4, body)
    check_words(caught.value, "on rank 1 of 4")


def test_without_a_cause_the_lowest_rank_that_waited_is_named() -> None:
    def body() -> None:
        kv = ncclkv.create("threads")
        if kv.rank == 0:
            raised.wait(20)
            return
        try:
            kv.barrier()
        finally:
            raised.set()

    raised = threading.Event()
    with pytest.raises(CommTimeout) as caught:
        run_ranks(2, body, timeout=0.3)
    check_words(caught.value, "for rank 0", "on rank 1 of 2")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_sys_exit_of_a_rank_is_raised_too(error: type[BaseException]) -> None:
    def body() -> None:
        kv = ncclkv.create("threads")
        if kv.rank == 1:
            raise error("now")
        kv.barrier()

    with pytest.raises(error) as caught:
        run_ranks(2, body)
    check_words(caught.value, "now", "on rank 1 of 2")


@pytest.mark.parametrize("name", ["threads", "dist", "dist_sync"])
def test_threads_are_ranks_only_while_they_run(name: str) -> None:
    def body() -> int:
        return int(ncclkv.create(name).num_workers)

    assert run_ranks(3, body) == [3, 3, 3]
    assert ncclkv.create(name).num_workers == 1


@pytest.mark.parametrize("name", ["threads", "dist", "dist_sync"])
def test_a_thread_that_a_rank_starts_is_refused(name: str) -> None:
    """A store of the thread would be alone, and its sums those of one rank."""

    def body() -> tuple[int, int]:
        with ThreadPoolExecutor(1) as pool, ncclkv.create(name) as kv:
            with pytest.raises(UsageError) as caught:
                pool.submit(ncclkv.create, name).result()
            kv.barrier()
            check_words(caught.value, "is not a rank", "rank 0, rank 1", "'local'")
            return kv.num_workers, pool.submit(ncclkv.create, "local").result().num_workers

    assert run_ranks(2, body) == [(2, 1)] * 2
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(ncclkv.create, name).result().num_workers == 1


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_first_program_of_the_readme_runs_unchanged(size: int) -> None:
    run_ranks(size, lambda: check_first_program(number(), size))


@pytest.mark.parametrize("name", ["threads", "dist", "dist_sync", "Dist"])
def test_names_of_all_ranks_mean_the_threads(name: str, caplog: pytest.LogCaptureFixture) -> None:
    def body() -> tuple[str, int, str]:
        with ncclkv.create(name) as kv:
            assert kv.num_workers == 3
            return kv.type, kv.rank, repr(kv)

    for rank, (type_, found, text) in enumerate(run_ranks(3, body)):
        assert (type_, found) == (name.lower(), rank)
        assert f"rank {rank} of 3 over threads" in text
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["local", "device"])
def test_stores_of_one_process_stay_alone(name: str) -> None:
    def body() -> int:
        with ncclkv.create(name) as kv:
            return kv.num_workers

    assert run_ranks(2, body) == [1, 1]


@pytest.mark.parametrize("name", ["nccl", "dist_device_sync"])
def test_stores_over_nccl_need_processes(name: str) -> None:
    with pytest.raises(LaunchError) as caught:
        run_ranks(2, ncclkv.create, name)
    check_words(
        caught.value, name, "threads", "mpirun -n 2 python SCRIPT", "create('dist_sync')", "rank 0"
    )


def test_different_names_of_the_same_ranks_are_found() -> None:
    with pytest.raises(SpecMismatch) as caught:
        run_ranks(2, lambda: ncclkv.create("dist" if number() else "threads"))
    check_words(caught.value, "name=threads", "name=dist")


@pytest.mark.parametrize("name", ["dist", "dist_sync"])
def test_a_part_of_the_threads_by_the_program_of_a_job(name: str) -> None:
    def body() -> tuple[int, float]:
        world = ncclkv.comm.world()
        assert (world.size, world.timeout) == (4, 30.0)
        part = world.split(world.rank % 2)
        with ncclkv.create(name, comm=part) as kv:
            kv.init(0, np.zeros(()))
            kv.push(0, float(world.rank))
            return kv.num_workers, float(kv.pull(0))

    assert run_ranks(4, body, timeout=30.0) == [(2, 2.0), (2, 4.0), (2, 2.0), (2, 4.0)]


def test_a_wrong_timeout_of_the_threads_is_refused() -> None:
    with pytest.raises(UsageError, match="timeout=-1"):
        run_ranks(1, ncclkv.comm.world, -1)


def test_a_rank_that_returned_is_named_at_once() -> None:
    def body() -> None:
        kv = ncclkv.create("dist", timeout=60)
        if number() == 0:
            kv.barrier()

    begin = time.monotonic()
    with pytest.raises(RankLost) as caught:
        run_ranks(2, body)
    assert time.monotonic() - begin < 30
    check_words(caught.value, "rank 1 left", "its function returned without closing the store")


def test_a_rank_that_returned_early_keeps_what_it_has_sent() -> None:
    def body(nbytes: int) -> int:
        kv = ncclkv.create("dist", timeout=60)
        kv.init("w", np.zeros(nbytes // 8))
        kv.push("w", np.ones(nbytes // 8))
        if number() == 0:
            time.sleep(0.2)
        return int(kv.pull("w").sum()) + len(kv.allgather_object(bytes(nbytes)))

    for nbytes in (8, 1 << 13, 1 << 21):
        assert run_ranks(3, body, nbytes) == [3 * nbytes // 8 + 3] * 3


@pytest.mark.parametrize("world", [None, Seeded(0)], ids=["threads", "a world"])
def test_memory_of_a_failed_run_is_released(world: Seeded | None) -> None:
    """Check it for a sum that is never complete: nobody else writes into its memory."""
    kept: list[weakref.ref[Any]] = []

    def body() -> None:
        comm = ncclkv.comm.world()
        array = np.zeros(3 + comm.rank)
        kept.append(weakref.ref(array))
        comm.allreduce(array, array).wait()

    with pytest.raises(OrderMismatch) as caught:
        run_ranks(2, body, world=world)
    del caught
    run_ranks(1, lambda: None, world=Seeded(1))  # the last world is kept
    gc.collect()
    assert len(kept) == 2
    assert all(each() is None for each in kept)
