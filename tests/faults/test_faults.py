"""Faults drawn from a seed: each job ends in time, names the rank, and has no wrong sum.

``NCCLKV_TEST_FAULTS=SEED`` or ``SEED:COUNT`` draws the faults of that seed again, and their number.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.faults import expect
from tests.faults.fault import KINDS, Fault, draw
from tests.harness.extent import complete
from tests.harness.job import Ended, start

PROGRAM = Path(__file__).with_name("program.py")
COUNT = 40 if complete() else len(KINDS)
LIMIT = 40.0
"""Seconds of one job."""

AT_ONCE = 2

_asked, _, _count = os.environ.get("NCCLKV_TEST_FAULTS", "").partition(":")
SEED = int(_asked) if _asked else random.SystemRandom().randrange(1_000_000)
FAULTS = [draw(SEED, number) for number in range(int(_count) if _count else COUNT)]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Future[Ended]]]:
    """Start all jobs, a few at a time."""
    folder = tmp_path_factory.mktemp("faults")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield [
            pool.submit(partial(job, fault, folder / f"mark-{number}"))
            for number, fault in enumerate(FAULTS)
        ]
        pool.shutdown(cancel_futures=True)


def job(fault: Fault, mark: Path) -> Ended:
    """Run the job that the fault strikes."""
    return start(
        PROGRAM,
        fault.dumps(),
        ranks=fault.ranks,
        mark=mark,
        limit=LIMIT,
        run=fault.run,
        **expect.variables(fault),
    )


@pytest.mark.limit(LIMIT * COUNT)
@pytest.mark.parametrize(
    "number", range(len(FAULTS)), ids=[f"{SEED}-{n}-{fault}" for n, fault in enumerate(FAULTS)]
)
def test_a_fault(jobs: list[Future[Ended]], number: int) -> None:
    fault, ended = FAULTS[number], jobs[number].result()
    found = expect.failures(fault, ended)
    again = f"NCCLKV_TEST_FAULTS={SEED}:{number + 1}"
    assert not found, f"{found}\n{fault}\n{again}\n{ended.out}\n{ended.err}"


def test_every_kind_is_drawn() -> None:
    drawn = {draw(SEED, number).kind for number in range(len(KINDS))}
    assert drawn == set(KINDS)
    assert draw(SEED, 3) == draw(SEED, 3)
