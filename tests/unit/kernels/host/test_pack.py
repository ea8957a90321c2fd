"""Copies between users' arrays and flat slots in host memory."""

from __future__ import annotations

import numpy as np
import pytest

from ncclkv.kernels.base import Kernels
from ncclkv.kernels.host import HostKernels

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")

KERNELS: Kernels = HostKernels()
BASE = np.arange(24.0).reshape(2, 3, 4)
VALUES = {
    "contiguous": BASE,
    "no dimensions": np.array(7.0),
    "empty": np.empty((0, 4)),
    "fortran": np.asfortranarray(BASE),
    "strided": BASE[:, ::2, ::-1],
    "transposed": BASE.transpose(2, 0, 1),
    "repeated": np.broadcast_to(np.arange(3.0), (4, 3)),
    "other byte order": BASE.astype(">f8" if BASE.dtype.isnative else "<f8"),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_pack_writes_in_c_order_and_nowhere_else(value: np.ndarray) -> None:
    memory = np.full(value.size + 2, -1.0)
    KERNELS.pack(value, memory[1:-1])
    assert memory.tolist() == [-1, *value.ravel().tolist(), -1]


@pytest.mark.parametrize("name", [name for name in VALUES if name != "repeated"])
def test_unpack_returns_the_packed_values(name: str) -> None:
    value = VALUES[name]
    out = np.zeros_like(value)
    KERNELS.unpack(value.ravel().astype(np.float64), out)
    assert np.array_equal(out, value)


def test_unpack_writes_into_strides() -> None:
    memory = np.zeros((4, 6))
    KERNELS.unpack(np.arange(1.0, 7.0), memory[::2, 1::2])
    assert memory[::2, 1::2].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert memory.sum() == 21


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("int32", [1, -1, 300]), ("float32", [1.5, -1.5, 300]), ("bool", [True, True, True])],
)
def test_unpack_casts_as_astype_does(dtype: str, expected: list[float]) -> None:
    slot = np.array([1.5, -1.5, 300.0])
    out = np.zeros(3, dtype)
    KERNELS.unpack(slot, out)
    assert out.tolist() == expected == slot.astype(dtype).tolist()


def test_many_arrays_are_packed_and_unpacked_like_one() -> None:
    values = [value for name, value in VALUES.items() if name != "other byte order"]
    slots = [np.full(value.size, -1.0) for value in values]
    outs = [np.full(value.shape, -1.0) for value in values]
    packing = unpacking = None
    for step in range(3):
        for slot, out in zip(slots, outs, strict=True):
            slot[...] = out[...] = -1
        packing = KERNELS.pack_all([value + step for value in values], slots, packing)
        unpacking = KERNELS.unpack_all(slots, outs, unpacking)
        for value, slot, out in zip(values, slots, outs, strict=True):
            assert slot.tolist() == (value + step).ravel().tolist()
            assert np.array_equal(out, value + step)


def test_many_arrays_are_cast_as_astype_does_without_a_warning() -> None:
    slots = [np.array([1.5, -1.5]), np.array([np.nan, 1e300])]
    outs = [np.zeros((2, 1), np.int32), np.zeros(2, np.int32)]
    with np.errstate(all="ignore"):
        expected = [slot.astype(np.int32).tolist() for slot in slots]
    table = None
    for _ in range(2):
        table = KERNELS.unpack_all(slots, outs, table)
        assert [out.ravel().tolist() for out in outs] == expected


def test_unpack_to_and_from_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes")
    slot = np.array([1.5, -2.0, 2.0**100], ml_dtypes.bfloat16)
    out = np.zeros((3, 1), np.float32)
    KERNELS.unpack(slot, out)
    assert out.ravel().tolist() == [1.5, -2, 2.0**100]
    back = np.zeros((3, 1), ml_dtypes.bfloat16)
    KERNELS.unpack(out.ravel(), back)
    assert np.array_equal(back.ravel(), slot)
