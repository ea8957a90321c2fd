"""Tensors of torch as value and out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclkv.arrays import as_out, as_value
from ncclkv.errors import NotSupported, UsageError

torch = pytest.importorskip("torch", reason="torch is not installed")
fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")
WHAT = "push of key 3"


REAL = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
DTYPES = [*REAL, "complex64", "complex128"]


@pytest.mark.parametrize("name", DTYPES)
def test_values_and_outs_are_views(name: str) -> None:
    tensor = torch.ones(3, dtype=getattr(torch, name))
    view = as_value(tensor, WHAT)
    assert type(view) is np.ndarray
    assert view.dtype == np.dtype(name)
    as_out(tensor, WHAT)[1] = 0
    assert view.tolist() == tensor.tolist() == [1, 0, 1]


def test_any_strides() -> None:
    tensor = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)[::2]
    view = as_value(tensor, WHAT)
    assert view.shape == (2, 2, 3)
    assert view.tolist() == tensor.tolist()
    as_out(tensor, WHAT)[...] = 0
    assert not tensor.any()


@pytest.mark.parametrize("shape", [(), (0, 4), (2, 0)])
def test_no_dimensions_and_no_elements(shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape)
    assert as_value(tensor, WHAT).shape == as_out(tensor, WHAT).shape == shape


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_bfloat16_keeps_its_bits(shape: tuple[int, ...]) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes")
    tensor = torch.full(shape, 1.5, dtype=torch.bfloat16)
    view = as_value(tensor, WHAT)
    assert view.dtype == np.dtype(ml_dtypes.bfloat16)
    assert view.shape == shape
    assert (view.astype(np.float32) == 1.5).all()
    as_out(tensor, WHAT)[...] = -3
    assert (tensor == -3).all()


def test_tensors_that_require_grad_are_detached() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    assert as_value(parameter * 2, WHAT).tolist() == [2, 2, 2]
    as_out(parameter, WHAT)[:] = 5
    assert parameter.tolist() == [5, 5, 5]
    assert parameter.requires_grad


def test_lazy_conjugates_and_negations_are_resolved_in_values() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert as_value(tensor.conj(), WHAT).tolist() == [1 - 2j, 3 + 4j]
    assert as_value(tensor.conj().imag, WHAT).tolist() == [-2, 4]


def test_lazy_conjugates_and_negations_are_refused_as_outs() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    for out in (tensor.conj(), tensor.conj().imag):
        with pytest.raises(
            UsageError, match=r"lazily conjugated or negated view .* pass that tensor"
        ):
            as_out(out, WHAT)


def test_an_expanded_tensor_is_refused_as_out() -> None:
    tensor = torch.ones(3).expand(4, 3)
    assert as_value(tensor, WHAT).shape == (4, 3)
    with pytest.raises(UsageError, match="elements of out share memory"):
        as_out(tensor, WHAT)


@pytest.mark.parametrize("function", [as_value, as_out])
def test_sparse_layouts_are_refused(function: Any) -> None:
    with pytest.raises(NotSupported, match=r"layout is torch.sparse_coo; pass its \.to_dense\(\)"):
        function(torch.eye(2).to_sparse(), WHAT)


@pytest.mark.parametrize("function", [as_value, as_out])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised_tensors_are_refused(function: Any) -> None:
    tensor = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    with pytest.raises(NotSupported, match=r"is quantised; pass its \.dequantize\(\)"):
        function(tensor, WHAT)


@pytest.mark.parametrize("function", [as_value, as_out])
def test_meta_tensors_are_refused(function: Any) -> None:
    with pytest.raises(UsageError, match="push of key 3: the tensor is on torch's meta device and"):
        function(torch.ones(3, device="meta"), WHAT)


@pytest.mark.parametrize("function", [as_value, as_out])
def test_dtypes_that_numpy_lacks_are_refused_with_the_cause(function: Any) -> None:
    tensor = torch.zeros(2, dtype=torch.float8_e4m3fn)
    with pytest.raises(NotSupported, match=r"no view of this Tensor of torch\.float8_e4m3fn \("):
        function(tensor, WHAT)


def test_refusal_of_gpu_tensors_names_the_copy_to_the_host() -> None:
    # FakeTensorMode is torch's stand-in: tensors with a device and without memory need no GPU.
    with fake_tensor.FakeTensorMode():
        tensor = torch.ones(3, device="cuda")
    with pytest.raises(NotSupported, match=r"a torch tensor on cuda:0 is .* pass its \.cpu\(\)$"):
        as_value(tensor, WHAT)
    with pytest.raises(NotSupported, match="give a host array as out, and copy that to the device"):
        as_out(tensor, WHAT)


@pytest.mark.parametrize("function", [as_value, as_out])
def test_tensors_without_memory_are_refused_with_the_cause(function: Any) -> None:
    with fake_tensor.FakeTensorMode():
        tensor = torch.ones(3)
    with pytest.raises(NotSupported, match=r"no view of this FakeTensor .* pass a plain tensor"):
        function(tensor, WHAT)
