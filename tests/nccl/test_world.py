"""Layer 2, recording stand-in, not NCCL: random programs in seeded worlds.

The streams of each rank and its watcher are threads of the world, whose turns the seed draws.
"""

from __future__ import annotations

import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

from tests.world.case import case_of, run

pytestmark = pytest.mark.limit(30)


@pytest.mark.parametrize("seed", range(60))
def test_a_valid_program_ends_with_the_numbers_of_the_model(seed: int) -> None:
    case = case_of(seed, standin=True)
    assert not run(case).complaint, str(case)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_seed_gives_one_trace(seed: int) -> None:
    case = case_of(seed, standin=True)
    assert run(case).world.sha256 == run(case).world.sha256
