"""Arrays of other libraries through DLPack, and arrays in a device's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclkv.arrays import as_out, as_value
from ncclkv.errors import NotSupported, UsageError

WHAT = "push of key 3"
NUMPY = tuple(int(part) for part in np.__version__.split(".")[:2])


class Exporter:
    """An array of another library: host memory behind DLPack's present protocol."""

    def __init__(self, x: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.x = x
        self.device = device

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class OldExporter(Exporter):
    """An array of a library older than DLPack 1.0: its capsule has no read-only flag."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self.x.__dlpack__()


class Failing(Exporter):
    """An array that its library cannot export."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("no dtype for it")


class CudaArray:
    """An array with the attributes of Numba's device arrays; its pointer is invalid."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (3,), "typestr": "<f4", "data": (0, False), "version": 3}


def _from_library(cls: type, module: str) -> type:
    """Return an instance of `cls` that claims to come from the package `module`."""
    return type(cls.__name__, (cls,), {"__module__": module})


@pytest.mark.parametrize("exporter", [Exporter, OldExporter])
def test_values_are_views(exporter: Any) -> None:
    memory = np.arange(12, dtype=np.float32)
    view = as_value(exporter(memory[::2]), WHAT)
    assert type(view) is np.ndarray
    assert np.shares_memory(view, memory)
    assert view.tolist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.skipif(NUMPY < (2, 1), reason="NumPy before 2.1 asks for no versioned capsule")
def test_out_is_written_if_the_capsule_is_writable() -> None:
    memory = np.zeros(3, np.float32)
    as_out(Exporter(memory), WHAT)[:] = 5
    assert memory.tolist() == [5, 5, 5]


def test_out_is_refused_if_the_capsule_is_not_writable() -> None:
    with pytest.raises(UsageError) as caught:
        as_out(OldExporter(np.zeros(3)), WHAT)
    message = str(caught.value)
    assert message.startswith("push of key 3: out is read-only: a ")
    assert "has no DLPack flag that allows writes (the flag needs DLPack 1.0" in message
    assert message.endswith("pass a NumPy array")


def test_pinned_host_memory_is_host_memory() -> None:
    memory = np.arange(3.0)
    view = as_value(OldExporter(memory, device=(3, 0)), WHAT)
    assert np.shares_memory(view, memory)


@pytest.mark.parametrize("device", [2, 10, 13, 14])
def test_device_memory_is_refused(device: int) -> None:
    x = Exporter(np.zeros(3), device=(device, 0))
    with pytest.raises(NotSupported, match="device's memory and this store takes host memory"):
        as_value(x, WHAT)
    with pytest.raises(NotSupported, match="give a host array as out, and copy that to the device"):
        as_out(x, WHAT)


@pytest.mark.parametrize(
    ("module", "advice"),
    [
        ("cupy", r"a cupy CudaArray is in a device's memory .* pass its \.get\(\)$"),
        ("numba.cuda", r"a numba CudaArray .* pass its \.copy_to_host\(\)$"),
        (
            "elsewhere",
            r"an? elsewhere CudaArray .* pass its copy in host memory \(a NumPy array\)$",
        ),
    ],
)
def test_refusal_of_cuda_arrays_names_the_copy_to_the_host(module: str, advice: str) -> None:
    x = _from_library(CudaArray, module)()
    with pytest.raises(NotSupported, match="^push of key 3: " + advice):
        as_value(x, WHAT)
    with pytest.raises(NotSupported, match="give a host array as out"):
        as_out(x, WHAT)


@pytest.mark.parametrize("module", ["jax", "jaxlib._jax"])
def test_jax_arrays_are_accepted_as_values_and_refused_as_outs(module: str) -> None:
    x = _from_library(Exporter, module)(np.arange(3.0))
    assert as_value(x, WHAT).tolist() == [0, 1, 2]
    with pytest.raises(
        UsageError, match="out is a JAX array, which cannot be written; pull without"
    ):
        as_out(x, WHAT)


@pytest.mark.parametrize("function", [as_value, as_out])
def test_arrays_that_numpy_cannot_view_are_refused_with_the_cause(function: Any) -> None:
    with pytest.raises(
        NotSupported, match=r"through DLPack \(BufferError: no dtype for it\); pass it as a NumPy"
    ):
        function(Failing(np.zeros(3)), WHAT)
