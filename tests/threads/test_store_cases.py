"""The store cases over one rank, and over threads at one to four ranks."""

from __future__ import annotations

import pytest

from ncclkv.testing import run_ranks
from tests.conformance import Case
from tests.conformance.covering import chosen
from tests.conformance.stores import Stores
from tests.harness.one_core import one_core


def over_solo(case: Case, update_on: str) -> None:
    with Stores("local", update_on) as create:
        case.body(create)


def over_threads(case: Case, update_on: str, size: int) -> None:
    def body() -> None:
        with Stores("threads", update_on) as create:
            case.body(create)

    # The cases of communicators run on all cores.
    with one_core():
        run_ranks(size, body)


def bring(case: Case) -> None:
    """Skip a case whose package is not installed."""
    if case.needs:
        pytest.importorskip(case.needs, reason=f"{case.needs} is not installed")


@pytest.mark.parametrize(("case", "size", "update_on"), chosen("solo", 1))
def test_one_rank(case: Case, size: int, update_on: str) -> None:
    bring(case)
    over_solo(case, update_on)


@pytest.mark.parametrize(("case", "size", "update_on"), chosen("threads", 1, 2, 3, 4))
def test_threads(case: Case, size: int, update_on: str) -> None:
    bring(case)
    over_threads(case, update_on, size)
