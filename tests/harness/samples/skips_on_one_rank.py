import pytest


def test_skipped_on_rank_1_alone(comm_world):
    if comm_world.rank == 1:
        pytest.skip("not here")
