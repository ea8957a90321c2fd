"""`run_ranks`: its results, its refusals, and the choice of the error that it raises."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import ncclkv
from ncclkv.errors import CommTimeout, UsageError
from ncclkv.testing import run_ranks
from tests.conformance.expect import check_words


def number() -> int:
    """Return this thread's rank."""
    return int(threading.current_thread().name.removeprefix("rank "))


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


def test_threads_are_ranks_only_while_they_run() -> None:
    def body() -> int:
        return int(ncclkv.create("threads").num_workers)

    assert run_ranks(3, body) == [3, 3, 3]
    assert ncclkv.create("threads").num_workers == 1
