"""The device, the stream and the allocator that CuPy has for a thread: choices of the program's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import ncclkv
from tests.nccl.gpu import need_gpu


@pytest.fixture(scope="module")
def rank_device() -> None:
    """Make the rank's device current, as the creation of a store does; collective."""
    need_gpu()
    ncclkv.create("nccl").close()


def current() -> tuple[Any, ...]:
    """Return what the thread has as its current device, stream and allocator."""
    import cupy

    cuda = cupy.cuda
    return cuda.runtime.getDevice(), cuda.get_current_stream(), cuda.get_allocator()


@contextmanager
def kept(what: str) -> Iterator[None]:
    """Check that a ``with`` block leaves what is current."""
    before = current()
    yield
    assert current() == before, f"{what} changed the thread's device, stream or allocator"


@contextmanager
def chosen(how: str) -> Iterator[Any]:
    """Choose the current stream as programs do, and return it."""
    import cupy

    other, stream = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    default = cupy.cuda.get_current_stream()
    try:
        if how == "with":
            with stream:
                yield stream
        elif how == "use":
            yield stream.use()
        else:  # both, of which `use` is the last
            with other:
                yield stream.use()
    finally:
        default.use()
