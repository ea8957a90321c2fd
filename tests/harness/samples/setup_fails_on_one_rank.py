import pytest


@pytest.fixture
def value(comm_world):
    if comm_world.rank == 2:
        raise ValueError("no value here")
    return 1


@pytest.fixture
def resource(comm_world):
    yield
    if comm_world.rank == 1:
        raise ValueError("cannot give it back")


def test_in_setup(value, comm_world):
    comm_world.barrier()


def test_in_teardown(resource, comm_world):
    comm_world.barrier()
