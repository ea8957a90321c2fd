"""A stand-in for `cupy.cuda` with CuPy's names alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import cupy
import pytest

from ncclkv.comm.nccl import start

Cuda = Any


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """Replace ``cupy.cuda`` by a mock that records calls; a name that CuPy lacks fails."""
    real = cupy.cuda
    cuda = mock.MagicMock(spec=real)
    cuda.runtime = mock.MagicMock(spec=real.runtime)
    cuda.runtime.CUDARuntimeError = real.runtime.CUDARuntimeError
    cuda.runtime.streamCaptureModeThreadLocal = real.runtime.streamCaptureModeThreadLocal
    cuda.driver = SimpleNamespace(CUDADriverError=real.driver.CUDADriverError)
    cuda.Stream = mock.MagicMock(spec=real.Stream)
    cuda.Stream.return_value.ptr = 1000
    # CuPy's function returns CUDA's code, too, and raises nothing.
    cuda.runtime.eventQuery.return_value = 0
    cuda.Event = mock.MagicMock(side_effect=lambda **_: SimpleNamespace(ptr=77))
    monkeypatch.setattr(cupy, "cuda", cuda)
    monkeypatch.setattr(start, "DRIVER", "libc.so.6")
    return cuda
