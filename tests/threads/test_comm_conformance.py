"""The communicator cases over one process and over threads, at one to seven ranks."""

from __future__ import annotations

import pytest

from ncclkv.comm.host import threads
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.testing import run_ranks
from tests.conformance.communicator_all import CASES, FAILURES
from tests.conformance.covering import communicator_cases
from tests.harness.extent import some_or_all
from tests.harness.slow import stretched

TIMEOUT = stretched(20.0)
FAILURE_SIZES = (3,)
ORDINARY = [name for name in CASES if name not in FAILURES]


@pytest.mark.parametrize("name", ORDINARY)
def test_solo(name: str) -> None:
    comm = SoloCommunicator(TIMEOUT)
    CASES[name](comm)
    comm.close()


def over_threads(size: int, name: str) -> None:
    """Run a case on so many threads, each with its end of one communicator."""

    def body() -> None:
        comm = threads.world(TIMEOUT)
        CASES[name](comm)
        comm.close()

    run_ranks(size, body, timeout=TIMEOUT)


ON_THREADS = [
    (size, name)
    for size in some_or_all((1, 2, 3, 4), (1, 2, 3, 4, 5, 7))
    for name in communicator_cases(ORDINARY, "threads", size)
]


@pytest.mark.parametrize(("size", "name"), ON_THREADS)
def test_threads(name: str, size: int) -> None:
    over_threads(size, name)


@pytest.mark.parametrize("way", ["halves", "messages"])
@pytest.mark.parametrize("name", ORDINARY)
def test_other_ways_to_share_memory(monkeypatch: pytest.MonkeyPatch, name: str, way: str) -> None:
    monkeypatch.setenv("NCCLKV_NODE_MEMORY", way)
    over_threads(3, name)


@pytest.mark.parametrize("size", FAILURE_SIZES)
@pytest.mark.parametrize("name", sorted(FAILURES))
def test_failures_of_threads(name: str, size: int) -> None:
    over_threads(size, name)
