"""Seeds that have found a defect, planted or real: each case is right again.

A change of the package moves the points of a trace, and a seed may no longer find its defect.  So
``python -m tests.mutants`` plants each defect again, and its seed, or one of those in a row, must
fail.
"""

from __future__ import annotations

import pytest

from tests.world.case import case_of, run
from tests.world.search import search

SEEDS = {
    "a_crossing_proven_by_times": 5,
    "a_launch_after_the_record_of_its_block": 50,
    "a_lost_wake_up": 0,
    "a_flag_before_its_data": 0,
    "a_chunk_published_before_it_is_copied": 287,
    "a_slot_used_again_too_early": 0,
    "a_half_used_again_too_early": 80,
    "a_mapped_array_given_back_too_early": 2311,
    "sums_given_back_before_the_neighbours_have_written": 12,
    "a_stale_number_of_a_collective": 0,
    "a_launch_outside_the_order": 151,
    "a_finished_rank_taken_for_a_lost_one": 226,
    "a_residue_of_an_exception": 14,
    "messages_in_another_order": 6,
    "requests_used_up_in_a_burst": 781,
    "an_engine_that_stays_with_an_ended_thread": 1838,
    "a_slot_of_the_ring_that_its_own_rank_still_needs": 5001466,
    "a_flag_of_the_ring_that_its_own_rank_still_needs": 5000455,
}
"""Seeds by the mutants of `tests.mutants.planted.worlds`, and by defects of the package."""


@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
def test_the_seed_of_a_defect(seed: int) -> None:
    finding = run(case_of(seed))
    assert not finding.complaint, f"{finding.world.sha256}\n{finding.complaint}"


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_seeds_in_a_row(first: int) -> None:
    report = search(range(first, first + 20), 60.0)
    assert report.failed is None, f"{report.failed}\n{report.complaint}"
    assert report.seeds == 20


def test_a_case_has_one_trace() -> None:
    for seed in range(10):
        assert run(case_of(seed)).world.sha256 == run(case_of(seed)).world.sha256
