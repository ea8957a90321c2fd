"""Climb from CUDA to a store and to torch, a rung at a time: ``python ladder.py [ranks]``.

On a machine on which nothing has run yet, the ladder shows in a minute where the first contact
fails.  Each rung prints a line with its seconds and its findings.  A rung that fails prints its
traceback.  The ladder ends there if later rungs need the rung, and on several ranks at any failure,
because the other ranks are at the same rung.  ``ranks`` takes the ranks that mpirun started.

The exit code is 0 if all rungs hold, `SOME_FAILED` if the ladder was climbed to its end and some
rungs failed, and 1 if the ladder ended early.  After LADDER_LIMIT seconds (75) the ladder ends
itself, and prints the stacks of all threads.
"""

from __future__ import annotations

import faulthandler
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.nccl import gpu

SOME_FAILED = 4
"""Exit code of a ladder that was climbed to its end though some rungs failed."""

Rung = Callable[[], str]
"""Function that does one thing, and returns its findings."""


@dataclass
class Job:
    """This rank, and the objects of lower rungs that higher rungs use."""

    rank: int = 0
    size: int = 1
    streams: Any = None
    kv: Any = None
    out: Any = None

    @property
    def store(self) -> str:
        """Name of the store of these ranks."""
        return "nccl" if self.size > 1 else "device"

    @property
    def total(self) -> float:
        """Sum over the ranks of the rank's index plus 1, which each rank pushes."""
        return self.size * (self.size + 1) / 2


job = Job()


def microseconds(call: Callable[[], object], finish: Callable[[], object], times: int = 20) -> str:
    """Return the median time of a call and of the wait for its work."""
    call()
    finish()
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        finish()
        took.append((time.perf_counter() - begin) * 1e6)
    return f"{statistics.median(took):.0f} us (at least {min(took):.0f})"


def check(got: float, wanted: float) -> str:
    """Return a number's text; fail if it is not as expected."""
    assert abs(got - wanted) <= 1e-4 * max(1.0, abs(wanted)), f"{got}, and should be {wanted}"
    return f"{got:g}"


def context() -> str:
    """Import CuPy and make a context."""
    import cupy

    runtime = cupy.cuda.runtime
    found = runtime.getDeviceProperties(0)["name"].decode()
    assert int(cupy.arange(4).sum()) == 6
    versions = f"driver {runtime.driverGetVersion()}, runtime {runtime.runtimeGetVersion()}"
    return f"CuPy {cupy.__version__}, {found}, {versions}"


def kernel() -> str:
    """Compile, load and launch a kernel of the store."""
    import cupy

    from ncclkv.kernels.device.kernels import DeviceKernels

    kernels, finish = DeviceKernels(), cupy.cuda.Device().synchronize
    one, two = cupy.arange(10**6, dtype=np.float32), cupy.empty(10**6, np.float32)
    kernels.pack_all([one], [two])
    assert bool((one == two).all())
    return microseconds(lambda: kernels.pack_all([one], [two]), finish, 100)


def events() -> str:
    """Query an event that has not been reached, and time an event's life."""
    import cupy

    from ncclkv.comm.nccl.streams import CupyStreams

    job.streams = streams = CupyStreams(0)
    with streams.on(streams.communication):
        array = cupy.zeros(gpu.busy(2**26), np.float32)
        for _ in range(60):
            array += 1
    event, polls = streams.record(streams.communication), 0
    while not event.done():
        polls += 1
    cupy.cuda.Device().synchronize()
    assert float(array[-1]) == 60

    def life() -> None:
        made = streams.record(0)
        streams.wait(streams.communication, made)
        made.done()

    return f"{polls} queries; record, wait, query, free: {microseconds(life, lambda: None, 200)}"


def chosen_stream() -> str:
    """Check that a block on another stream gives back the stream that a program chose."""
    import cupy

    mine = cupy.cuda.Stream(non_blocking=True)
    mine.use()
    try:
        with job.streams.on(job.streams.communication):
            pass
        kept = cupy.cuda.get_current_stream() == mine
    finally:
        cupy.cuda.Stream.null.use()
    assert kept, "the program's current stream is lost"
    return "kept"


def nccl() -> str:
    """Create, use and destroy a communicator of one rank by the binding of NCCL."""
    import cupy

    from ncclkv.comm.nccl.ctypes_binding import CtypesBinding

    binding, finish = CtypesBinding(0, 30.0), cupy.cuda.Device().synchronize
    begin = time.perf_counter()
    comm = binding.create(1, binding.unique_id(), 0, lambda: None)
    created = time.perf_counter() - begin
    data = cupy.ones(1000, np.float32)
    finish()

    def add() -> None:
        # ncclFloat32, ncclSum
        binding.all_reduce(
            comm, data.data.ptr, data.data.ptr, 1000, 7, 0, job.streams.communication
        )

    took = microseconds(add, finish, 100)
    check(float(data[0]), 1.0)
    begin = time.perf_counter()
    binding.destroy(comm)
    ended = time.perf_counter() - begin
    library = f"{binding.version()} of {binding.library.path}"
    return f"{library}; create {created:.2f} s, all_reduce {took}, destroy {ended:.2f} s"


def create() -> str:
    """Create a store."""
    import ncclkv

    job.kv = ncclkv.create(job.store, timeout=30)
    assert job.kv.num_workers == job.size
    return f"{job.kv.type}, {job.kv.num_workers} ranks"


def step() -> str:
    """Push two keys, update them with momentum, and pull them, twice."""
    import cupy

    from ncclkv import optimizer

    keys, shapes = ["a", "b"], [(1000,), (3, 5)]
    job.kv.init(keys, [cupy.zeros(shape, np.float32) for shape in shapes])
    job.kv.set_optimizer(optimizer.SGD(learning_rate=0.5, momentum=0.9))
    outs = [cupy.empty(shape, np.float32) for shape in shapes]
    gradients = [cupy.full(shape, job.rank + 1, np.float32) for shape in shapes]
    for _ in range(2):
        job.kv.pushpull(keys, gradients, out=outs)
    job.out = outs[0]
    wanted = -0.5 * job.total * (1 + 1.9)
    check(float(outs[1][-1, -1]), wanted)
    return check(float(outs[0][-1]), wanted)


def host_arrays() -> str:
    """Push and pull arrays in host memory."""
    out = np.empty(1000, np.float32)
    before = job.kv.pull("a")
    job.kv.push("a", np.zeros(1000, np.float32))
    job.kv.pull("a", out=out)
    momentum = -0.5 * job.total * 0.9 * 1.9
    return check(float(out[0]), float(before[0]) + momentum)


def capture() -> str:
    """Capture a step, and replay it."""
    import cupy

    gradient = cupy.zeros(1000, np.float32)
    job.kv.pushpull("a", gradient, out=job.out)
    with job.kv.capture() as captured:
        job.kv.pushpull("a", gradient, out=job.out)
    before = float(job.out[0])
    for _ in range(3):
        captured.replay()
    job.kv.wait()
    assert float(job.out[0]) != before, "three replays changed nothing"
    took = microseconds(captured.replay, job.kv.wait, 50)
    captured.close()
    return f"replay and wait {took}"


def placements() -> str:
    """Update on a root, in parts, and with sums in rank order."""
    import cupy

    import ncclkv
    from ncclkv import optimizer

    found = []
    for options in ({"reproducible": True}, {"update_on": "root"}, {"update_on": "sharded"}):
        with ncclkv.create(job.store, timeout=30, **options) as kv:
            kv.init("k", cupy.zeros(100_000, np.float32))
            kv.set_optimizer(optimizer.SGD(learning_rate=1.0))
            out = cupy.empty(100_000, np.float32)
            kv.pushpull("k", cupy.full(100_000, job.rank + 1, np.float32), out=out)
            check(float(out[0]), -job.total)
            found.append(f"{options} {check(float(out[-1]), -job.total)}")
    return ", ".join(found)


def resnet() -> str:
    """Time a step of ResNet-50's 161 keys: from lists, from views, and as one graph."""
    import cupy

    import ncclkv
    from bench.models import MODELS
    from ncclkv import optimizer

    shapes = MODELS["ResNet-50"]()
    if gpu.emulated():
        shapes = {key: shape for key, shape in shapes.items() if len(shape) == 1}
    keys = list(shapes)

    def arrays() -> list[Any]:
        return [cupy.zeros(shape, np.float32) for shape in shapes.values()]

    with ncclkv.create(job.store, timeout=60) as kv:
        kv.init(keys, arrays())
        kv.set_optimizer(optimizer.SGD(learning_rate=0.1, momentum=0.9))
        gradients, outs, views = arrays(), arrays(), [kv.grad_view(key) for key in keys]
        lists = microseconds(lambda: kv.pushpull(keys, gradients, out=outs), kv.wait)
        begin = time.thread_time()
        kv.pushpull(keys, gradients, out=outs)
        used = (time.thread_time() - begin) * 1e6
        kv.wait()
        into = microseconds(lambda: kv.pushpull(keys, views, out=outs), kv.wait)
        with kv.capture() as captured:
            kv.pushpull(keys, gradients, out=outs)
        replay = microseconds(captured.replay, kv.wait)
        captured.close()
    return f"lists {lists}, {used:.0f} us of CPU; views {into}; replay {replay}"


def torch_tensors() -> str:
    """Push and pull torch's tensors, and train a wrapped module for a step."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    import ncclkv
    from ncclkv.torch import DataParallel

    with ncclkv.create(job.store, timeout=30) as kv:
        kv.init("t", torch.zeros(1000, device="cuda"))
        out = torch.empty(1000, device="cuda")
        kv.pushpull("t", torch.full((1000,), job.rank + 1.0, device="cuda"), out=out)
        found = check(float(out[0]), job.total)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = DataParallel(model.cuda())
    inputs = torch.full((4, 8), job.rank + 1.0, device="cuda")
    begin = time.perf_counter()
    model(inputs).sum().backward()
    norm = float(sum((each.grad**2).sum() for each in model.parameters()))
    took = time.perf_counter() - begin
    model.close()
    return f"torch {torch.__version__}, sum {found}; a module's pass {took:.2f} s, norm {norm:g}"


def close() -> str:
    """Close the store."""
    job.kv.close()
    return ""


NEEDED: tuple[Rung, ...] = (context, kernel, events, create, step)
"""Rungs without which no later rung can hold."""

SEVERAL: tuple[Rung, ...] = (context, kernel, events, create, step, host_arrays, capture,
                             placements, resnet, torch_tensors, close)  # fmt: skip
ALONE: tuple[Rung, ...] = (*SEVERAL[:3], chosen_stream, nccl, *SEVERAL[3:])


def climb(rungs: tuple[Rung, ...]) -> int:
    """Run all rungs, and return the exit code."""
    failed = []
    for rung in rungs:
        what = (rung.__doc__ or "").rstrip(".")
        begin = time.perf_counter()
        try:
            found = rung()
        except BaseException:
            failed.append(rung.__name__)
            print(
                f"[{job.rank}] FAILED after {time.perf_counter() - begin:.2f} s: {what}\n"
                f"{traceback.format_exc()}",
                flush=True,
            )
            if job.size > 1 or rung in NEEDED:
                return 1
        else:
            took = time.perf_counter() - begin
            print(f"[{job.rank}] {took:6.2f} s  {what}: {found}", flush=True)
    print(f"[{job.rank}] failed rungs: {', '.join(failed) or 'none'}", flush=True)
    return SOME_FAILED if failed else 0


def main(words: list[str]) -> int:
    faulthandler.dump_traceback_later(float(os.environ.get("LADDER_LIMIT", "75")), exit=True)
    if lacking := gpu.missing():
        print(lacking)
        return int(gpu.required())
    if "ranks" in words:
        from mpi4py import MPI

        job.rank, job.size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    return climb(SEVERAL if job.size > 1 else ALONE)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    if code == 1:
        os._exit(code)  # the end of a broken store or of CUDA may hang
    sys.exit(code)
