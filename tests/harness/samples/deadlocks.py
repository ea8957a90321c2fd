import pytest


@pytest.mark.limit(1)
def test_one_rank_waits_for_ever(comm_world):
    if comm_world.rank == 1:
        comm_world.recv(source=0)
