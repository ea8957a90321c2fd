import os
import signal


def test_rank_1_is_killed(comm_world):
    if comm_world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm_world.barrier()
