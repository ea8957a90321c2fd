"""Print where the CPU time of a step goes: primitives of CUDA and NCCL, and a profile of the store.

One rank, ResNet-50's 161 keys.  The CPU times are this thread's own, without the wait for the GPU.
"""

from __future__ import annotations

import cProfile
import io
import os
import pstats
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

import ncclkv
from bench.models import MODELS
from ncclkv import optimizer
from ncclkv.comm.nccl.ctypes_binding import CtypesBinding
from ncclkv.comm.nccl.streams import CupyStreams
from ncclkv.kernels.device.kernels import DeviceKernels

TIMES = 30
SHAPES = MODELS["ResNet-50"]()
KEYS = list(SHAPES)


def cpu(call: Callable[[], object], finish: Callable[[], object], times: int = TIMES) -> str:
    """Return the median and the least CPU time of a call, in microseconds."""
    took = []
    for _ in range(times):
        begin = time.thread_time()
        call()
        took.append((time.thread_time() - begin) * 1e6)
        finish()
    return f"{statistics.median(took):9.1f} us, at least {min(took):9.1f}"


def profile(call: Callable[[], object], finish: Callable[[], object], rows: int = 16) -> None:
    """Print the functions in which a call spends most time."""
    tracer = cProfile.Profile()
    for _ in range(TIMES):
        tracer.enable()
        call()
        tracer.disable()
        finish()
    text = io.StringIO()
    pstats.Stats(tracer, stream=text).sort_stats("tottime").print_stats(rows)
    lines = [line for line in text.getvalue().splitlines() if line.strip()]
    print(*(re.sub(r"/\S*/(ncclkv|cupy|numpy)/", r"\1/", line) for line in lines[2:]), sep="\n")


def primitives() -> None:
    """Print the CPU time of each call that a launched bucket makes."""
    streams, binding, kernels = CupyStreams(0), CtypesBinding(0, 30.0), DeviceKernels()
    comm = binding.create(1, binding.unique_id(), 0, lambda: None)
    finish = cupy.cuda.Device().synchronize
    one, two = cupy.ones(1000, np.float32), cupy.empty(1000, np.float32)
    stream, event = streams.communication, streams.record(0)
    address, runtime = one.data.ptr, cupy.cuda.runtime
    graph = cupy.ReductionKernel("T x", "T y", "x", "a + b", "y = a", "0", "ncclkv_probe")
    calls: dict[str, Callable[[], Any]] = {
        "kernel by pack_all": lambda: kernels.pack_all([one], [two]),
        "kernel of CuPy (+= 1)": lambda: one.__iadd__(1),
        "reduction of CuPy": lambda: graph(one),
        "copy by cudaMemcpyAsync": lambda: runtime.memcpyAsync(two.data.ptr, address, 4000, 3, 0),
        "event made, recorded": lambda: streams.record(0),
        "stream waits for event": lambda: streams.wait(stream, event),
        "event queried": event.done,
        "all_reduce in place": lambda: binding.all_reduce(
            comm, address, address, 1000, 7, 0, stream
        ),
        "all_reduce to another": lambda: binding.all_reduce(
            comm, address, two.data.ptr, 1000, 7, 0, stream
        ),
        "current stream": streams.current,
        "device checked": streams.check_device,
    }
    for name, call in calls.items():
        call()
        # Two hundred at a time: the clock of a thread costs as much as a short call.
        print(f"{name:24} {cpu(lambda call=call: [call() for _ in range(200)], finish, 5)} for 200")
    binding.destroy(comm)


def arrays() -> list[Any]:
    """Return an array for each key."""
    return [cupy.zeros(shape, np.float32) for shape in SHAPES.values()]


def store(updates: bool) -> None:
    """Print the CPU times of a store's step, and the profile of two kinds of step."""
    with ncclkv.create("nccl", timeout=60) as kv:
        kv.init(KEYS, arrays())
        if updates:
            kv.set_optimizer(optimizer.SGD(learning_rate=0.1, momentum=0.9))
        gradients, outs, views = arrays(), arrays(), [kv.grad_view(key) for key in KEYS]
        steps: dict[str, Callable[[], object]] = {
            "pushpull of lists": lambda: kv.pushpull(KEYS, gradients, out=outs),
            "push of lists": lambda: kv.push(KEYS, gradients),
            "pull of lists": lambda: kv.pull(KEYS, out=outs),
            "pushpull of views": lambda: kv.pushpull(KEYS, views, out=outs),
            "pushpull, new lists": lambda: kv.pushpull(KEYS, list(gradients), out=list(outs)),
        }
        for name, step in steps.items():
            for _ in range(3):
                step()
                kv.wait()
            print(f"{name:24} {cpu(step, kv.wait)}{' with SGD' if updates else ''}")
            if name in ("pushpull of lists", "pushpull of views"):
                profile(step, kv.wait)


def modules() -> None:
    """Print the CPU time of a backward pass of 161 parameters: bare, wrapped here, and torch's."""
    import torch

    from ncclkv.torch import DataParallel

    class Sums(torch.nn.Module):
        """Module whose parameters have ResNet-50's shapes, and gradients of ones."""

        def __init__(self) -> None:
            super().__init__()
            parameters = (
                torch.nn.Parameter(torch.zeros(s, device="cuda")) for s in SHAPES.values()
            )
            self.all = torch.nn.ParameterList(parameters)

        def forward(self) -> torch.Tensor:
            return sum(each.sum() for each in self.all)

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"}
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    wrappers: dict[str, Callable[[Any], Any]] = {
        "bare": lambda module: module,
        "ncclkv's DataParallel": DataParallel,
        "torch's DDP": lambda module: torch.nn.parallel.DistributedDataParallel(
            module, gradient_as_bucket_view=True
        ),
    }
    for name, wrap in wrappers.items():
        model = wrap(Sums())

        def step(model: Any = model) -> None:
            model().backward()

        def wall(step: Callable[[], None] = step) -> None:
            step()
            torch.cuda.synchronize()

        for _ in range(5):
            wall()
        took = []
        for _ in range(TIMES):
            begin = time.perf_counter()
            wall()
            took.append((time.perf_counter() - begin) * 1e6)
        print(f"{name:24} {statistics.median(took):9.1f} us a pass, at least {min(took):9.1f}")
        if name.startswith("ncclkv"):
            model.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    primitives()
    store(False)
    store(True)
    modules()
