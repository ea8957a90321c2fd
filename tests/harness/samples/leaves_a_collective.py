def test_one_rank_raises_before_a_collective(comm_world):
    if comm_world.rank == 1:
        raise ValueError("left early")
    comm_world.barrier()
