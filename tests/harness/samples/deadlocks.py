import pytest

from tests.harness import limit

limit.LAST_WORDS = 1.0  # the stuck rank waits busily all the time


@pytest.mark.limit(1)
def test_one_rank_waits_for_ever(comm_world):
    if comm_world.rank == 1:
        comm_world.recv(source=0)
