"""Layers 4 and 5, NCCL on a real GPU: captured steps, on one rank and on several."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from ncclkv.comm.nccl import start
from ncclkv.comm.nccl.ctypes_binding import CtypesBinding
from ncclkv.errors import NotSupported, UsageError
from tests.conformance.capabilities import use_buffers
from tests.conformance.captures_all import CAPTURES, MISUSES, Ready
from tests.conformance.expect import same, total
from tests.conformance.stores import Stores
from tests.nccl import gpu
from tests.nccl.gpu import need_gpu
from tests.nccl.gpu_buffers import GpuBuffers

pytestmark = pytest.mark.limit(40)
PLACEMENTS = pytest.mark.parametrize("update_on", ["every_rank", "root"])


@pytest.fixture
def ready() -> Iterator[Ready]:
    """Return a store that has made a step."""
    need_gpu()
    with use_buffers(GpuBuffers()), Stores("nccl", "every_rank") as create:
        yield Ready(create)


@PLACEMENTS
@pytest.mark.parametrize("name", CAPTURES)
def test_case(name: str, update_on: str) -> None:
    need_gpu()
    with use_buffers(GpuBuffers()), Stores("nccl", update_on) as create:
        CAPTURES[name](create)


@PLACEMENTS
@pytest.mark.parametrize("name", MISUSES)
def test_misuse(name: str, update_on: str) -> None:
    need_gpu()
    with use_buffers(GpuBuffers()), Stores("nccl", update_on) as create:
        MISUSES[name](create)


def test_what_cuda_forbids_in_a_capture_is_named(ready: Ready) -> None:
    import cupy

    calls: dict[str, Any] = {
        "an allocation": lambda: cupy.cuda.runtime.malloc(512),
        "a wait": lambda: cupy.cuda.get_current_stream().synchronize(),
    }
    for call in calls.values():
        with ready.refused(UsageError, "capture", "CUDA refuses this in a capture", "once before"):
            call()


def test_a_kernel_of_the_user_s_own_is_captured(ready: Ready) -> None:
    import cupy

    double = cupy.ElementwiseKernel("", "float32 x", "x *= 2", "double_in_place")
    double(ready.outs[0])
    with ready.kv.capture() as step:
        ready.pushpull()
        double(ready.outs[0])
    for _ in range(2):
        step.replay()
        same(ready.outs[0], 2 * total(ready.kv))


def test_replays_follow_the_current_stream_and_the_host_waits_for_none(ready: Ready) -> None:
    import cupy

    step, kv = ready.step(), ready.kv
    step.replay()
    busy, stream = cupy.ones(gpu.busy(2**28), np.float32), cupy.cuda.Stream(non_blocking=True)
    kv.wait()
    for value in (5, 6):
        with stream:
            for _ in range(50):
                busy += 1
            ready.gradients[0].fill(value)
            step.replay()
            end = stream.record()
            assert not end.done, "a replay has waited for the stream"
        # The default stream again, ordered after all of these.
        step.replay()
        same(ready.outs[0], value * kv.num_workers)


def test_many_replays_and_steps(ready: Ready) -> None:
    steps = [ready.step() for _ in range(5)]
    for _ in range(200):
        for step in steps:
            step.replay()
    ready.kv.wait()
    same(ready.outs[1], 10 * total(ready.kv))
    del steps[::2]
    steps[0].replay()
    same(ready.outs[1], 10 * total(ready.kv))
    ready.kv.close()


def test_communicators_that_do_not_block_cannot_be_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need_gpu()
    # As with NCCL_COMM_BLOCKING=0, which NCCL reads once in a process.
    monkeypatch.setattr(start, "CtypesBinding", partial(CtypesBinding, blocking=False))
    with use_buffers(GpuBuffers()), Stores("nccl", "every_rank") as create:
        ready = Ready(create)
        with pytest.raises(NotSupported, match="NCCL cannot be captured"), ready.kv.capture():
            ready.pushpull()
        ready.pushpull()
        same(ready.outs[0], total(ready.kv))
