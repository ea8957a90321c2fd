from tests.harness import exchange
from tests.harness.slow import stretched

exchange.PATIENCE = stretched(2.0)  # the other ranks busily wait for it


def test_one_rank_raises_before_a_collective(comm_world):
    if comm_world.rank == 1:
        raise ValueError("left early")
    comm_world.barrier()
