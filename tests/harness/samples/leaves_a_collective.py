from tests.harness import exchange
from tests.harness.slow import stretched

# The other ranks wait busily all the time.
exchange.PATIENCE = exchange.LAST_WORDS = stretched(0.5)


def test_one_rank_raises_before_a_collective(comm_world):
    if comm_world.rank == 1:
        raise ValueError("left early")
    comm_world.barrier()
