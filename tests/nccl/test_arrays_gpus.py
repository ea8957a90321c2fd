"""Layer 0: torch tensors of any GPU of the process, by what torch and CuPy say of their streams."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ncclkv.arrays import cupy as arrays
from ncclkv.errors import UsageError


class Tensor:
    """A torch tensor on a GPU, as far as it is looked at."""

    def __init__(self, device: int) -> None:
        self.device = SimpleNamespace(type="cuda", index=device)

    def detach(self) -> Tensor:
        return self

    resolve_conj = resolve_neg = detach


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """The addresses of torch's and CuPy's current streams, by device."""
    streams = {"torch": [0, 55], "cupy": [0, 55]}

    def current(library: str, device: int) -> Any:
        address = streams[library][device]
        return SimpleNamespace(ptr=address, cuda_stream=address)

    torch = SimpleNamespace(
        Tensor=Tensor, cuda=SimpleNamespace(current_stream=lambda device: current("torch", device))
    )
    cuda = SimpleNamespace(get_current_stream=lambda device: current("cupy", device))
    cupy = SimpleNamespace(cuda=cuda, from_dlpack=lambda tensor: f"view on {tensor.device.index}")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return streams


@pytest.mark.parametrize("device", [0, 1])
def test_a_tensor_of_any_gpu_is_viewed(streams, device):
    assert arrays.recognises(Tensor(device))
    assert arrays.value(Tensor(device), "push of key 3") == f"view on {device}"


def test_the_streams_of_its_own_gpu_have_to_be_the_same(streams):
    streams["torch"][1] = 77
    assert arrays.value(Tensor(0), "push of key 3") == "view on 0"
    with pytest.raises(UsageError, match=r"^push of key 3: torch's current stream of device 1 is"):
        arrays.value(Tensor(1), "push of key 3")
