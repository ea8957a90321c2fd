"""Layers 4 and 5, NCCL on a real GPU: the communicator cases, on one rank and on several."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ncclkv.comm.base import Communicator
from ncclkv.comm.host import start as hosts
from ncclkv.comm.nccl import start as gpus
from tests.conformance.capabilities import require_rank_order, use_buffers
from tests.conformance.communicator_all import CASES, FAILURES, IN_ORDER
from tests.nccl.gpu import need_gpu
from tests.nccl.gpu_buffers import GpuBuffers

pytestmark = pytest.mark.limit(60)


@pytest.fixture(scope="module")
def world() -> Iterator[Communicator]:
    """Return the GPUs of all ranks, on a communicator that every case leaves unchanged."""
    need_gpu()
    comm = gpus.launch(hosts.world(timeout=60.0))
    yield comm
    comm.close()


@pytest.mark.parametrize("name", [name for name in CASES if name not in FAILURES])
def test_case(name: str, world: Communicator) -> None:
    with use_buffers(GpuBuffers()):
        CASES[name](world)


@pytest.mark.parametrize("name", IN_ORDER)
def test_case_in_rank_order(name: str, world: Communicator) -> None:
    own = world.duplicate()
    own.reproducible = True
    with use_buffers(GpuBuffers()), require_rank_order():
        CASES[name](own)
    own.close()


# After the other cases, and a separate part in launch/on_gpu.sh: each breaks a communicator.
@pytest.mark.parametrize("name", sorted(FAILURES))
def test_failure(name: str, world: Communicator) -> None:
    if world.size > 1:
        with use_buffers(GpuBuffers()):
            CASES[name](world)
