"""Calls of the emulated NCCL by ctypes, with arrays in the memory of the emulated devices."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from tests.nccl.emulated.calls import code, made, ok
from tests.nccl.emulated.control import library
from tests.nccl.emulated.worlds import World

IN_PLACE = None
"""Operand that stands for the other one."""


class Result(IntEnum):
    """Codes of NCCL."""

    SUCCESS = 0
    CUDA_ERROR = 1
    SYSTEM_ERROR = 2
    INTERNAL_ERROR = 3
    INVALID_ARGUMENT = 4
    INVALID_USAGE = 5
    REMOTE_ERROR = 6
    IN_PROGRESS = 7


DTYPES = {
    np.dtype(name): constant
    for constant, name in enumerate(
        ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
    )
} | {np.dtype(ml_dtypes.bfloat16): 9}

OPS = ("sum", "prod", "max", "min", "avg")


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


class Config(ctypes.Structure):
    """``ncclConfig_t`` of 2.27, which later versions extend."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cgaClusterSize", ctypes.c_int),
        ("minCTAs", ctypes.c_int),
        ("maxCTAs", ctypes.c_int),
        ("netName", ctypes.c_char_p),
        ("splitShare", ctypes.c_int),
        ("trafficClass", ctypes.c_int),
        ("commName", ctypes.c_char_p),
        ("collnetEnable", ctypes.c_int),
        ("CTAPolicy", ctypes.c_int),
        ("shrinkShare", ctypes.c_int),
        ("nvlsCTAs", ctypes.c_int),
    )


def config(**fields: Any) -> Config:
    """Return a configuration with these fields set."""
    unset = -(2**31)
    made_of = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 22700, *[unset] * 4, None, unset, unset,
                     None, *[unset] * 4)  # fmt: skip
    for name, value in fields.items():
        setattr(made_of, name, value)
    return made_of


@cache
def nccl() -> ctypes.CDLL:
    """Return the library."""
    loaded = library("libnccl.so.2")
    loaded.ncclGetErrorString.restype = ctypes.c_char_p
    loaded.ncclGetLastError.restype = ctypes.c_char_p
    return loaded


def call(name: str, *arguments: Any) -> Result:
    """Call a function; an int is a pointer or a count, in 64 bits."""
    wide = [
        ctypes.c_void_p(each) if isinstance(each, int) or each is None else each
        for each in arguments
    ]
    return Result(getattr(nccl(), name)(*wide))


def last_error() -> str:
    """Return the text of the last error."""
    return str(nccl().ncclGetLastError(None).decode())


def check(result: Result) -> None:
    """Raise if a call failed."""
    if result != Result.SUCCESS:
        raise AssertionError(f"{result!r}: {last_error()}")


def unique_id() -> bytes:
    """Return a new id."""
    made_of = UniqueId()
    check(call("ncclGetUniqueId", ctypes.byref(made_of)))
    return bytes(made_of)


class Array:
    """An array in the memory of the current device.

    Parameters
    ----------
    values : numpy.ndarray
    """

    def __init__(self, values: Any) -> None:
        values = np.ascontiguousarray(values)
        self.dtype, self.size, self.nbytes = values.dtype, values.size, values.nbytes
        self.pointer = made("cudaMalloc", ctypes.c_size_t(max(1, self.nbytes)))
        if self.nbytes:
            self._copy(self.pointer, values.ctypes.data, 1)
            # Streams do not wait for the copy from pageable memory.
            ok("cudaStreamSynchronize", 0)

    def get(self) -> Any:
        """Return the array's values."""
        values = np.empty(self.size, self.dtype)
        if self.nbytes:
            self._copy(values.ctypes.data, self.pointer, 2)
        return values

    def at(self, element: int) -> int:
        """Return the address of an element."""
        return self.pointer + element * self.dtype.itemsize

    def free(self) -> None:
        ok("cudaFree", self.pointer)

    def _copy(self, to: int, source: int, kind: int) -> None:
        ok("cudaMemcpy", to, source, ctypes.c_size_t(self.nbytes), ctypes.c_int(kind))


class Comm:
    """A communicator, and a stream that does not wait for others.

    Parameters
    ----------
    handle : int
    rank, size : int
    """

    def __init__(self, handle: int, rank: int, size: int) -> None:
        self.handle, self.rank, self.size = handle, rank, size
        self.stream = made("cudaStreamCreateWithFlags", 1)

    def all_reduce(self, source: int, to: int, count: int, dtype: Any, op: str = "sum",
                   stream: int | None = None) -> Result:  # fmt: skip
        return self._call("ncclAllReduce", stream, source, to, count, _type(dtype), _op(op))

    def reduce(self, source: int, to: int, count: int, dtype: Any, op: str = "sum",
               root: int = 0, stream: int | None = None) -> Result:  # fmt: skip
        return self._call("ncclReduce", stream, source, to, count, _type(dtype), _op(op), root)

    def broadcast(self, source: int, to: int, count: int, dtype: Any, root: int = 0,
                  stream: int | None = None) -> Result:  # fmt: skip
        return self._call("ncclBroadcast", stream, source, to, count, _type(dtype), root)

    def all_gather(self, source: int, to: int, count: int, dtype: Any,
                   stream: int | None = None) -> Result:  # fmt: skip
        return self._call("ncclAllGather", stream, source, to, count, _type(dtype))

    def reduce_scatter(self, source: int, to: int, count: int, dtype: Any, op: str = "sum",
                       stream: int | None = None) -> Result:  # fmt: skip
        return self._call("ncclReduceScatter", stream, source, to, count, _type(dtype), _op(op))

    def send(self, source: int, count: int, dtype: Any, peer: int,
             stream: int | None = None) -> Result:  # fmt: skip
        return self._call("ncclSend", stream, source, count, _type(dtype), peer)

    def receive(self, to: int, count: int, dtype: Any, peer: int,
                stream: int | None = None) -> Result:  # fmt: skip
        return self._call("ncclRecv", stream, to, count, _type(dtype), peer)

    def _call(self, name: str, stream: int | None, *arguments: Any) -> Result:
        return call(name, *arguments, self.handle, self.stream if stream is None else stream)

    def synchronize(self) -> None:
        ok("cudaStreamSynchronize", self.stream)

    def is_done(self) -> bool:
        """Return whether the stream has run all its work."""
        return code("cudaStreamQuery", self.stream) == 0

    def state(self) -> Result:
        """Return the state by ncclCommGetAsyncError."""
        result = ctypes.c_int(-1)
        check(call("ncclCommGetAsyncError", self.handle, ctypes.byref(result)))
        return Result(result.value)

    def settled(self) -> Result:
        """Return the state once it is no longer in progress."""
        while (state := self.state()) == Result.IN_PROGRESS:
            time.sleep(0.001)
        return state

    def number(self, name: str) -> int:
        """Return the integer that a query function writes."""
        value = ctypes.c_int(-1)
        check(call(name, self.handle, ctypes.byref(value)))
        return value.value

    def abort(self) -> Result:
        return call("ncclCommAbort", self.handle)

    def destroy(self) -> Result:
        return call("ncclCommDestroy", self.handle)

    def finalize(self) -> Result:
        return call("ncclCommFinalize", self.handle)


def create(world: World, id: bytes | None = None, **fields: Any) -> Comm:
    """Create a communicator of all ranks, each on its own device.

    Parameters
    ----------
    world : World
    id : bytes, optional
        The id; by default a new one.
    **fields : int
        Fields of the configuration.
    """
    ok("cudaSetDevice", ctypes.c_int(world.rank % devices()))
    if id is None:
        id = world.tell(unique_id() if world.rank == 0 else None)[0]
    result, handle = begin(id, world.rank, world.size, config(**fields) if fields else None)
    if result != Result.IN_PROGRESS:
        check(result)
    return Comm(handle, world.rank, world.size)


def begin(id: bytes, rank: int, size: int, settings: Config | None = None) -> tuple[Result, int]:
    """Call ncclCommInitRankConfig; return its result, and the handle or 0."""
    handle = ctypes.c_void_p()
    result = call(
        "ncclCommInitRankConfig",
        ctypes.byref(handle),
        ctypes.c_int(size),
        UniqueId.from_buffer_copy(id),
        ctypes.c_int(rank),
        None if settings is None else ctypes.byref(settings),
    )
    return result, handle.value or 0


def devices() -> int:
    """Return the count of devices."""
    count = ctypes.c_int()
    ok("cudaGetDeviceCount", ctypes.byref(count))
    return count.value


@contextmanager
def group() -> Iterator[None]:
    """Make the calls of a block one group, which must succeed."""
    check(call("ncclGroupStart"))
    yield
    check(call("ncclGroupEnd"))


def eventually(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Wait until a condition holds; return whether it does."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def ranks_of(size: int) -> Iterator[tuple[int, int]]:
    """Return all ordered pairs of different ranks."""
    return itertools.permutations(range(size), 2)


def _type(dtype: Any) -> Any:
    return ctypes.c_int(dtype if isinstance(dtype, int) else DTYPES[np.dtype(dtype)])


def _op(op: str | int) -> Any:
    return ctypes.c_int(op if isinstance(op, int) else OPS.index(op))
