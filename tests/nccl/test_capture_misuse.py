"""Layer 2, recording stand-in, not NCCL: captures and replays that are refused."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="layer 2 needs CuPy: pip install 'ncclkv[cuda12]'")

import cupy

from ncclkv.errors import NotSupported, UsageError
from tests.conformance.capabilities import use_buffers
from tests.conformance.captures_all import MISUSES, Ready
from tests.conformance.expect import refused
from tests.harness.context import context_of
from tests.nccl.captures import PLACEMENTS
from tests.nccl.standin import Worker, run_on_standin
from tests.nccl.standin.buffers import StandInBuffers
from tests.nccl.standin.stores import StandInStores

pytestmark = pytest.mark.limit(30)


@pytest.mark.parametrize(("update_on", "size"), PLACEMENTS)
@pytest.mark.parametrize("name", MISUSES)
def test_case(name: str, update_on: str, size: int) -> None:
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, update_on) as create:
            MISUSES[name](create)

    run_on_standin(size, body, lazy=True)


def test_arrays_of_another_device() -> None:
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            ready = Ready(create)
            there = np.ones((2, 3), np.float32)
            memory = cupy.cuda.UnownedMemory(there.ctypes.data, there.nbytes, there, 1)
            other = cupy.ndarray((2, 3), np.float32, cupy.cuda.MemoryPointer(memory, 0))
            words = "an array on device 1 cannot be part of a capture on device 0; copy it"
            with ready.refused(UsageError, "push of key 3", words):
                ready.kv.push(3, other)
            with ready.refused(UsageError, "pull of key 3", words):
                ready.kv.pull(3, out=other)

    run_on_standin(2, body)


def test_another_current_stream() -> None:
    def body(worker: Worker) -> None:
        other = worker.device.stream("another stream")
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            ready = Ready(create)
            words = "another stream than that of the capture was made current", "leave the"
            with ready.refused(UsageError, *words), worker.streams.on(other):
                ready.pushpull()

    run_on_standin(2, body)


def test_another_thread() -> None:
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            ready, said = Ready(create), []
            step = ready.step()

            def replay() -> None:
                with pytest.raises(UsageError) as caught:
                    step.replay()
                said.append(str(caught.value))

            thread = threading.Thread(target=replay)
            thread.start()
            thread.join()
            assert "replay was called from thread" in said[0]
            ready.intact()

    run_on_standin(1, body)


def test_a_binding_that_cannot_be_captured() -> None:
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            ready = Ready(create)
            worker.binding.uncaptured = "its communicators do not block"
            with pytest.raises(NotSupported) as caught, ready.kv.capture():
                ready.pushpull()
            text = str(caught.value)
            assert "cannot be captured: its communicators do not block" in text
            worker.binding.uncaptured = ""
            ready.intact()

    run_on_standin(2, body)


class Refusing:
    """CUDA's refusal of a call in a capture, as CuPy raises it."""

    def __init__(self, worker: Worker) -> None:
        self._streams = worker.streams
        self.error = cupy.cuda.runtime.CUDARuntimeError(900)

    def broke_capture(self, error: BaseException) -> str:
        return f"CUDA refuses this: {error}" if error is self.error else ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._streams, name)


@pytest.mark.parametrize("inside", ["the block", "a verb"])
def test_what_cuda_refuses_is_named(inside: str) -> None:
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            ready = Ready(create)
            graphs = context_of(ready.kv).comm._lifetime.graphs
            graphs._streams = refusing = Refusing(worker)
            whole = worker.kernels.pack_all

            def pack_all(*arguments: Any) -> None:
                raise refusing.error

            if inside == "a verb":
                worker.kernels.pack_all = pack_all  # type: ignore[method-assign]
            words = "capture: CUDA refuses this: cudaErrorStreamCapture"
            with refused(ready.kv, UsageError, words), ready.kv.capture():
                ready.pushpull()
                raise refusing.error
            worker.kernels.pack_all = whole  # type: ignore[method-assign]
            ready.intact()

    run_on_standin(2, body)


def test_a_capture_that_cuda_ends_otherwise() -> None:
    def body(worker: Worker) -> None:
        with use_buffers(StandInBuffers(worker)), StandInStores(worker, "every_rank") as create:
            ready = Ready(create)
            graphs = context_of(ready.kv).comm._lifetime.graphs
            streams = graphs._streams

            def end_capture() -> None:
                graphs._streams = streams
                streams.end_capture()
                raise UsageError("the end of a capture: spoilt")

            graphs._streams = SimpleNamespace(
                begin_capture=streams.begin_capture, on=streams.on, end_capture=end_capture
            )
            with ready.refused(UsageError, "the end of a capture: spoilt"):
                ready.pushpull()

    run_on_standin(2, body)
