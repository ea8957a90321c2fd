"""Layer 2, recording stand-in, not NCCL: the communicator cases over the communicator for GPUs."""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from tests.conformance.capabilities import use_buffers
from tests.conformance.communicator_all import CASES, FAILURES
from tests.conformance.covering import communicator_cases
from tests.harness.extent import some_or_all
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.buffers import StandInBuffers

pytestmark = pytest.mark.limit(30)
MODE = {False: "prompt", True: "lazy"}
SIZES = {False: some_or_all((), (1, 3)), True: some_or_all((1, 3), (1, 2, 3, 4))}
"""Numbers of ranks, prompt and lazy: a lazy device finds more faults."""

RUNS = [
    pytest.param(name, size, lazy, id=f"{name}-{size}-{MODE[lazy]}")
    for lazy, sizes in SIZES.items()
    for size in sizes
    for name in communicator_cases(CASES, "stand-in", size)
    if name not in FAILURES
]


def over_the_stand_in(size: int, name: str, lazy: bool) -> None:
    """Run a case on so many threads, each with its own device."""

    def body(worker: Worker) -> None:
        comm = worker.communicator()
        with use_buffers(StandInBuffers(worker)):
            CASES[name](comm)
        comm.close()

    run_on_standin(size, body, lazy=lazy)


@pytest.mark.parametrize(("name", "size", "lazy"), RUNS)
def test_case(name: str, size: int, lazy: bool) -> None:
    over_the_stand_in(size, name, lazy)


@pytest.mark.parametrize("lazy", MODE, ids=MODE.get)
@pytest.mark.parametrize("name", sorted(FAILURES))
def test_failure(name: str, lazy: bool) -> None:
    over_the_stand_in(3, name, lazy)
