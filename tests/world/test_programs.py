"""Programs of several ranks on real threads, without a world."""

from __future__ import annotations

import pytest

from tests.world import plan
from tests.world.draw import draw
from tests.world.oracle import run, verdict


@pytest.mark.parametrize("seed", range(60))
def test_a_valid_program_ends_with_the_numbers_of_the_model(seed: int) -> None:
    program = draw(seed, 2 + seed % 2, 8, busy=0.01, timeout=10.0)
    complaint = verdict(run(program))
    assert not complaint, f"{program}\n{complaint}"


@pytest.mark.parametrize("seed", range(20))
def test_a_program_printed_is_its_source(seed: int) -> None:
    program = draw(seed, 2, 20)
    assert eval(repr(program), vars(plan)) == program
