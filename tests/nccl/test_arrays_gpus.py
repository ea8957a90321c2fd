"""Layer 0: torch tensors of any GPU of the process, by the streams that torch and CuPy report."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ncclkv.arrays import cupy as arrays
from ncclkv.errors import UsageError


class Tensor:
    """A torch tensor on a GPU, with the attributes that the package reads."""

    def __init__(self, device: int, conj: bool = False, neg: bool = False) -> None:
        self.device = SimpleNamespace(type="cuda", index=device)
        self.conj, self.neg = conj, neg

    def detach(self) -> Tensor:
        return self

    def resolve_conj(self) -> Tensor:
        return Tensor(self.device.index, neg=self.neg)

    def resolve_neg(self) -> Tensor:
        return Tensor(self.device.index, conj=self.conj)

    def is_conj(self) -> bool:
        return self.conj

    def is_neg(self) -> bool:
        return self.neg

    def view(self) -> str:
        """Return CuPy's view of a tensor."""
        assert (self.conj, self.neg) == (False, False), "DLPack does not tell of these"
        return f"view on {self.device.index}"


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Set the addresses of torch's and CuPy's current streams, by device."""
    streams = {"torch": [0, 55], "cupy": [0, 55]}

    def current(library: str, device: int) -> Any:
        address = streams[library][device]
        return SimpleNamespace(ptr=address, cuda_stream=address)

    torch = SimpleNamespace(
        Tensor=Tensor, cuda=SimpleNamespace(current_stream=lambda device: current("torch", device))
    )
    cuda = SimpleNamespace(get_current_stream=lambda device: current("cupy", device))
    cupy = SimpleNamespace(cuda=cuda, from_dlpack=Tensor.view)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return streams


@pytest.mark.parametrize("device", [0, 1])
def test_a_tensor_of_any_gpu_is_viewed(streams, device):
    assert arrays.recognises(Tensor(device))
    assert arrays.view(Tensor(device), "push of key 3", write=False) == f"view on {device}"


@pytest.mark.parametrize("lazily", [{"conj": True}, {"neg": True}, {"conj": True, "neg": True}])
def test_what_torch_does_lazily_is_carried_out_in_values_and_refused_as_out(streams, lazily):
    assert arrays.view(Tensor(1, **lazily), "push of key 3", write=False) == "view on 1"
    assert arrays.view(Tensor(1), "pull of key 3", write=True) == "view on 1"
    with pytest.raises(UsageError, match="^pull of key 3: out is a lazily conjugated or negated"):
        arrays.view(Tensor(1, **lazily), "pull of key 3", write=True)


def test_the_streams_of_its_own_gpu_have_to_be_the_same(streams):
    streams["torch"][1] = 77
    assert arrays.view(Tensor(0), "push of key 3", write=False) == "view on 0"
    with pytest.raises(UsageError, match=r"^push of key 3: torch's current stream of device 1 is"):
        arrays.view(Tensor(1), "push of key 3", write=False)


class Elsewhere:
    """An array of another library in a GPU's memory, described by its interface."""

    def __init__(self, read_only: bool) -> None:
        self.__cuda_array_interface__ = {
            "shape": (3,),
            "typestr": "<f4",
            "data": (0x7000, read_only),
            "version": 3,
        }


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the views of CuPy; like CuPy they ignore whether the array is read-only."""
    cupy = SimpleNamespace(ndarray=type("ndarray", (), {}), asarray=lambda x: ("view of", x))
    monkeypatch.setitem(sys.modules, "cupy", cupy)


def test_cupy_itself_views_read_only_memory_as_any_other():
    cupy = pytest.importorskip("cupy", reason="this test needs CuPy: pip install 'ncclkv[cuda12]'")
    if cupy.cuda.is_available():
        pytest.skip("there is a GPU here, which CuPy would ask of the address")
    empty = Elsewhere(read_only=True)
    empty.__cuda_array_interface__["shape"] = (0,)
    # The device is asked, since the read-only flag is not read.
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
        cupy.asarray(empty)


def test_memory_that_may_not_be_written_is_a_value_and_no_out(views):
    array = Elsewhere(read_only=True)
    assert arrays.view(array, "push of key 3", write=False) == ("view of", array)
    with pytest.raises(UsageError) as caught:
        arrays.view(array, "pull of key 3", write=True)
    assert str(caught.value) == (
        "pull of key 3: out is read-only, by the __cuda_array_interface__ of a tests Elsewhere; "
        "pass a CuPy array"
    )
    writable = Elsewhere(read_only=False)
    assert arrays.view(writable, "pull of key 3", write=True) == ("view of", writable)


@pytest.mark.parametrize("module", ["jaxlib._jax", "jax._src.array"])
def test_jax_arrays_on_a_gpu_are_refused_as_outs(views, module):
    kind = type("ArrayImpl", (Elsewhere,), {"__module__": module})
    with pytest.raises(UsageError, match="pull of key 3: out is a JAX array, which cannot be writ"):
        arrays.view(kind(read_only=False), "pull of key 3", write=True)


def test_the_error_about_another_stream_of_torch_names_a_call_that_cupy_has(streams):
    streams["torch"][1] = 77
    with pytest.raises(UsageError) as caught:
        arrays.view(Tensor(1), "push of key 3", write=False)
    assert str(caught.value).endswith(
        "call it inside: with cupy.cuda.Stream.from_external(torch.cuda.current_stream(1))"
    )
