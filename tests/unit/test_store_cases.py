"""The cases over one rank, and over threads at one to four ranks, in both placements."""

from __future__ import annotations

import pytest

from ncclkv.testing import run_ranks
from tests.conformance import CASES, Case
from tests.conformance.stores import Stores

PLACEMENTS = ("every_rank", "root")


def over_solo(case: Case, update_on: str) -> None:
    with Stores("local", update_on) as create:
        case.body(create)


def over_threads(case: Case, update_on: str, size: int) -> None:
    def body() -> None:
        with Stores("threads", update_on) as create:
            case.body(create)

    run_ranks(size, body)


def bring(case: Case) -> None:
    """Skip a case whose package is not installed."""
    if case.needs:
        pytest.importorskip(case.needs, reason=f"{case.needs} is not installed")


@pytest.mark.parametrize("update_on", PLACEMENTS)
@pytest.mark.parametrize("case", [c for c in CASES if c.fits(1)], ids=lambda case: case.name)
def test_one_rank(case: Case, update_on: str) -> None:
    bring(case)
    over_solo(case, update_on)


@pytest.mark.parametrize("update_on", PLACEMENTS)
@pytest.mark.parametrize(
    ("case", "size"),
    [pytest.param(c, n, id=f"{c.name}-{n}") for c in CASES for n in (1, 2, 3, 4) if c.fits(n)],
)
def test_threads(case: Case, size: int, update_on: str) -> None:
    bring(case)
    over_threads(case, update_on, size)
