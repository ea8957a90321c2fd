"""Random programs on stores of one process, and on ranks that are threads."""

from __future__ import annotations

from functools import partial

import pytest

import ncclkv
from tests.conformance.programs import LIMIT, Program, find_failure, play
from tests.harness.extent import examples
from tests.harness.slow import stretched

TIMEOUT = stretched(10.0)


@pytest.mark.limit(LIMIT)
def test_local() -> None:
    find_failure(lambda program: play(program, 1, partial(ncclkv.create, "local")), examples(250))


@pytest.mark.limit(LIMIT)
@pytest.mark.parametrize(("size", "count"), [(1, 60), (2, 250), (3, 200), (4, 150)])
def test_threads(size: int, count: int) -> None:
    create = partial(ncclkv.create, "threads", timeout=TIMEOUT)

    def run(program: Program) -> None:
        ncclkv.testing.run_ranks(size, play, program, size, create, timeout=TIMEOUT)

    find_failure(run, examples(count))
