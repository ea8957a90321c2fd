import sys


def test_fails_on_rank_1(comm_world):
    print("printed by rank", comm_world.rank)
    print("warned by rank", comm_world.rank, file=sys.stderr)
    assert comm_world.rank != 1, "this rank is not like the others"


def test_runs_all_the_same(comm_world):
    assert comm_world.allreduce(1) == comm_world.size
