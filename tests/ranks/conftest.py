"""Settings of the tests that run on every rank of a job, as in ``mpirun -n 4 python -m pytest``.

All ranks run the same tests in the same order and agree on each outcome; see `tests.harness.ranks`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mpi4py import MPI

import ncclkv
from ncclkv.comm import backoff
from tests.conformance.capabilities import BuffersOfSeveralNodes, current_buffers, use_buffers
from tests.harness.ranks import pytest_configure

__all__ = ["pytest_configure"]

# More ranks than cores: ranks that poll less leave the cores to the ranks that they await.
backoff.YIELDS, backoff.FIRST_SLEEP = 10, 200e-6


@pytest.fixture(scope="session")
def comm_world() -> MPI.Intracomm:
    """Return mpi4py's communicator of all ranks."""
    return MPI.COMM_WORLD


def on_several_hosts(comm: MPI.Intracomm) -> bool:
    """Return whether ranks are on machines that share no memory; collective."""
    machine = comm.Split_type(MPI.COMM_TYPE_SHARED)
    alone = machine.Get_size() == comm.Get_size()
    machine.Free()
    return not alone


@pytest.fixture(scope="session")
def several_nodes(comm_world: MPI.Intracomm) -> bool:
    """Return whether ranks are on several nodes, or are split into several."""
    return "NCCLKV_RANKS_PER_NODE" in os.environ or on_several_hosts(comm_world)


@pytest.fixture(autouse=True)
def place(several_nodes: bool) -> Iterator[None]:
    """Return the memory of the cases; ranks on several nodes do not promise the order of sums."""
    with use_buffers(BuffersOfSeveralNodes() if several_nodes else current_buffers()):
        yield


# Modules of torch; torch may be absent


@pytest.fixture
def wrap() -> Iterator[Callable[..., Any]]:
    """Return a function that wraps a module; the stores are closed at the end of the test."""
    from ncclkv.torch import DataParallel

    models = []

    def wrapped(module: Any, **options: Any) -> Any:
        of_store = {"bucket_bytes": 4096, "nonfinite": "ignore"}
        of_store.update((name, options.pop(name)) for name in list(options) if name in of_store)
        kv = ncclkv.create("dist_sync", timeout=20, **of_store)
        models.append(DataParallel(module, kv, **options))
        return models[-1]

    yield wrapped
    for model in models:
        model.close()


@pytest.fixture(scope="module")
def gloo(comm_world: MPI.Intracomm) -> Iterator[None]:
    """Make torch's group of all ranks, for DDP."""
    from torch import distributed

    path = comm_world.bcast(tempfile.mktemp(prefix="ncclkv-gloo-"))  # made by torch
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=comm_world.rank, world_size=comm_world.size
    )
    yield
    distributed.destroy_process_group()
