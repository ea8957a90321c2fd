"""Random programs on the ranks of a job, drawn on rank 0."""

from __future__ import annotations

import traceback
from functools import partial

import pytest

import ncclkv
from tests.conformance.programs import LIMIT, Program, find_failure, play
from tests.harness.exchange import Exchange
from tests.harness.extent import examples
from tests.harness.slow import stretched

TIMEOUT = stretched(10.0)


@pytest.mark.limit(LIMIT)
def test_dist_sync() -> None:
    ranks = Exchange(print)
    if ranks.rank:
        follow(ranks)
        return
    try:
        find_failure(partial(together, ranks), examples(150))
    finally:
        ranks.everyone(None)


def together(ranks: Exchange, program: Program) -> None:
    """Run a program drawn by rank 0 on all ranks; raise here what any rank finds."""
    ranks.everyone(program)
    texts = ranks.everyone(attempt(ranks, program))
    found = [f"rank {rank}: {text}" for rank, text in enumerate(texts) if text]
    assert not found, "\n".join(found)


def follow(ranks: Exchange) -> None:
    """Run the programs that rank 0 draws, until it stops."""
    while (program := ranks.everyone(None)[0]) is not None:
        ranks.everyone(attempt(ranks, program))


def attempt(ranks: Exchange, program: Program) -> str:
    """Run a program on this rank; return its error, if any."""
    try:
        play(program, ranks.size, partial(ncclkv.create, "dist_sync", timeout=TIMEOUT))
    except Exception as error:
        return "".join(traceback.format_exception(error))
    return ""
