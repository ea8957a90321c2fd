"""Ranks on cores: spread evenly, and free again afterwards."""

from __future__ import annotations

import os

import pytest

from bench.cores import one_core_a_rank


@pytest.mark.parametrize("raises", [False, True])
def test_ranks_are_spread_over_the_cores_and_free_afterwards(raises: bool) -> None:
    before = os.sched_getaffinity(0)
    used = []
    for rank in range(2 * len(before)):
        try:
            with one_core_a_rank(rank):
                used += os.sched_getaffinity(0)
                if raises:
                    raise ValueError
        except ValueError:
            pass
        assert os.sched_getaffinity(0) == before
    assert used == sorted(before) * 2
