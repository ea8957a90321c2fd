"""Memory in which a communicator works: arrays, times and free bytes, on a host or a GPU."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ncclkv.comm.base import Communicator
from ncclkv.comm.types import Buffer


class HostMemory:
    """Host memory of this rank.

    Attributes
    ----------
    xp : module
        NumPy or CuPy, which creates and compares arrays in this memory.
    store : str
        Name of a store of all ranks in this memory.
    alone : str
        Name of a store of one process in this memory.
    """

    xp: Any = np
    store = "dist_sync"
    alone = "local"

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def empty(self, shape: int | tuple[int, ...]) -> Buffer:
        """Return an uninitialised float32 array, allocated as a user would."""
        array: Buffer = self.xp.empty(shape, np.float32)
        return array

    def bucket(self, count: int) -> Buffer:
        """Return `count` float32 zeros in the memory that collectives can use best."""
        return self._comm.allocate(count * 4).view(np.float32)

    def common(self, count: int) -> Buffer | None:
        """Return `count` float32 zeros shared by the node; None without shared memory."""
        memory = self._comm.node_shared(count * 4)
        return None if memory is None else memory.view(np.float32)

    def synchronize(self) -> None:
        """Wait until all launched work in this memory is complete."""
        self._comm.synchronize()

    def timed(self, work: Callable[[], None]) -> float:
        """Wait for all that `work` launches; return the seconds from its start."""
        begin = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - begin

    def device(self) -> str:
        """Return this rank's entry in nccl-tests' list of devices."""
        return f"device  0 [host] {processor()}"

    def free_bytes(self) -> int:
        """Return this rank's share of the node's free memory; collective."""
        give_back()
        self._comm.control.barrier("memory")
        return available() // self._comm.local_size


class GpuMemory(HostMemory):
    """Memory of this rank's GPU, which is CuPy's current device.

    Parameters
    ----------
    sharing : int
        Count of ranks on that GPU.
    """

    store = "nccl"
    alone = "device"

    def __init__(self, comm: Communicator, sharing: int = 1) -> None:
        import cupy

        super().__init__(comm)
        self._sharing = sharing
        self.xp = cupy
        self._cuda = cupy.cuda

    def synchronize(self) -> None:
        self._comm.synchronize()
        self._cuda.Device().synchronize()

    def timed(self, work: Callable[[], None]) -> float:
        """Wait for `work`; return the seconds between two events of the stream around it.

        At the end of `work` the current stream must wait for all other streams of the work.  The
        host's clock would add a tenth to a short step, because the host sleeps between two polls.
        """
        events = [self._cuda.Event() for _ in range(2)]
        events[0].record()
        work()
        events[1].record()
        self.synchronize()
        return float(self._cuda.get_elapsed_time(*events)) / 1e3

    def device(self) -> str:
        runtime, index = self._cuda.runtime, self._cuda.runtime.getDevice()
        name = runtime.getDeviceProperties(index)["name"].decode()
        return f"device {index:2d} [{runtime.deviceGetPCIBusId(index)}] {name}"

    def free_bytes(self) -> int:
        gc.collect()
        self.xp.get_default_memory_pool().free_all_blocks()
        return int(self._cuda.runtime.memGetInfo()[0]) // self._sharing


def give_back() -> None:
    """Give this process's freed memory of Python and malloc back to the system."""
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Give this process's freed memory of malloc back to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has this function
    if trim is not None:
        trim(0)


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def available() -> int:
    """Return the free bytes of host memory, within the container's limit."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except OSError:
        return free
    return free if limit == "max" else min(free, int(limit) - used)
