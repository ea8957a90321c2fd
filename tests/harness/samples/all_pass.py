import pytest


def test_ranks_are_counted(comm_world):
    assert sum(comm_world.allgather(1)) == comm_world.size


@pytest.mark.skip(reason="skipped everywhere")
def test_skipped_on_every_rank():
    raise AssertionError


@pytest.mark.xfail(reason="expected everywhere")
def test_fails_as_expected_on_every_rank():
    raise AssertionError
