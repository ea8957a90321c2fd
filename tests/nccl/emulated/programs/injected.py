"""Each CUDA call of a step fails once, on the last rank; ``python injected.py [FUNCTION ...]``.

Every fault has its own store in one process, so a store follows an aborted one. Each rank prints
one line a fault; `test_injected` reads its parts.
"""

from __future__ import annotations

import sys
import time

import cupy
import numpy as np

import ncclkv
from tests.nccl.emulated import captures, control

TIMEOUT = 6.0
"""Seconds of the store's deadline, which no fault may reach."""

CAPTURE_INFO = "cudaStreamGetCaptureInfo"
"""Function that the emulated NCCL calls in communicators of several ranks."""

FUNCTIONS = (
    "cuLaunchKernel",
    "cudaEventCreateWithFlags",
    "cudaEventRecord",
    "cudaEventQuery",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "cudaStreamWaitEvent",
    "cudaGetDevice",
    "cudaSetDevice",
    "cudaStreamIsCapturing",
    CAPTURE_INFO,
    "ncclAllReduce",
    "ncclCommGetAsyncError",
)
"""All functions that a step calls, but for cudaEventDestroy.

CuPy calls that one in ``Event.__del__``, whose errors Python drops; the device's next call reports
an error that lasts.
"""

LARGEST = {"ncclCommGetAsyncError": 16}
"""Maximum of failed calls of a function that waits repeat."""

FAILURES = {True: 2, False: 700}
"""Codes by whether NCCL returns them: ncclSystemError, cudaErrorIllegalAddress."""

KEYS = ["small", "long"]
SHAPES = [(1000,), (300, 500)]


class Store:
    """A store that has made a step with arrays of the device and of the host."""

    def __init__(self) -> None:
        self.kv = ncclkv.create("nccl", timeout=TIMEOUT)
        self.kv.init(KEYS, [np.zeros(shape, np.float32) for shape in SHAPES])
        self.kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.5, momentum=0.5))
        self.gradients = [cupy.ones(shape, np.float32) for shape in SHAPES]
        self.outs = [cupy.empty(shape, np.float32) for shape in SHAPES]
        self.on_host = [np.ones(shape, np.float32) for shape in SHAPES]
        self.step()

    def step(self) -> None:
        self.kv.push(KEYS, self.gradients)
        self.kv.pull(KEYS, out=self.outs)
        self.kv.push(KEYS, self.on_host)
        self.kv.pull(KEYS, out=self.on_host)
        self.kv.wait()

    def outcome(self) -> str:
        """Make two steps, and return the name and the text of the error that ended them."""
        try:
            self.step()
            self.step()
        except BaseException as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())}"
        return "passed"

    def close(self) -> None:
        try:
            self.kv.close()
        except ncclkv.KVStoreError as error:
            print(f"close: {type(error).__name__}: {' '.join(str(error).split())}", flush=True)


def calls_of_a_step(function: str) -> int:
    """Return the maximum of a function's calls in a step, over all ranks."""
    store = Store()
    before = control.calls(function)
    store.step()
    largest = ncclkv.create("dist_sync")
    largest.init("calls", np.zeros(largest.num_workers))
    mine = np.zeros(largest.num_workers)
    mine[largest.rank] = control.calls(function) - before
    largest.push("calls", mine)
    calls = int(largest.pull("calls").max())
    largest.close()
    store.close()
    return calls


def fail(function: str, nth: int) -> None:
    """Let the nth call from now fail on the last rank, and print each rank's line."""
    store = Store()
    rank, last = store.kv.rank, store.kv.num_workers - 1
    before = control.calls(function)
    if rank == last:
        control.fail(function, nth, FAILURES[function.startswith("nccl")])
    begin = time.monotonic()
    outcome = store.outcome()
    seconds = time.monotonic() - begin
    failed = rank == last and control.calls(function) - before >= nth
    control.fail(function, 0, 0)
    # One write with its line end: lines of two ranks may otherwise be mixed.
    sys.stdout.write(f"rank {rank} | {function} {nth} | {failed} | {seconds:.2f} | {outcome}\n")
    sys.stdout.flush()
    store.close()


def main(functions: list[str]) -> None:
    for function in functions or FUNCTIONS:
        name = captures.names(2)[0] if function == CAPTURE_INFO else function
        calls = min(calls_of_a_step(name), LARGEST.get(name, 1000))
        for nth in range(1, calls + 1):
            fail(name, nth)


main(sys.argv[1:])
