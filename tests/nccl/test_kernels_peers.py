"""Layer 3, without a device: values and outs of several devices of one process.

The kernels run as C++ on host memory, in fake streams (see ``machine.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from ncclkv.kernels.device.copies import CopyTable
from ncclkv.kernels.device.kernels import DeviceKernels
from tests.nccl.fake_machine import Machine, view
from tests.nccl.kernels_as_cpp import COMPILER, CppLauncher

pytest.importorskip("cupy", reason="layer 3 needs CuPy: pip install 'ncclkv[cuda12]'")

pytestmark = pytest.mark.skipif(
    COMPILER is None, reason="running the kernels on the host needs a C++ compiler: install g++"
)

X = np.arange(48, dtype=np.float32).reshape(6, 8)
FORMS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda x: x,
    "strided": lambda x: x[:, ::2],
    "transposed": lambda x: x.T,
    "no dimensions": lambda x: x[0, 1].reshape(()),
    "empty": lambda x: x[:, :0],
}


@pytest.fixture(scope="module")
def launcher() -> CppLauncher:
    return CppLauncher()


@pytest.fixture(params=list(permutations(range(3))), ids=str)
def order(request: pytest.FixtureRequest) -> tuple[int, ...]:
    """Return an order of the devices, fastest first."""
    order: tuple[int, ...] = request.param
    return order


@pytest.fixture
def machine(launcher: CppLauncher, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(launcher)
    machine.install(monkeypatch)
    return machine


@pytest.fixture
def kernels(machine: Machine) -> DeviceKernels:
    return DeviceKernels(machine.launch)


def piece(x: Any, form: str) -> Any:
    """Return a part of a two-dimensional array, of NumPy or CuPy."""
    if form == "no dimensions":
        return x[:1, 1:2].reshape(())
    return FORMS[form](x)


@pytest.mark.parametrize("form", FORMS)
def test_a_value_of_another_device_is_packed(machine, kernels, order, form):
    value, slot = machine.made(X, 1), machine.empty(piece(X, form).size, X.dtype)
    kernels.pack(piece(value, form), slot)
    machine.fill(value, -1)  # right after the return of pack
    machine.run(order)
    assert view(slot).tolist() == piece(X, form).ravel().tolist()
    assert machine.copies == [(1, 0, slot.nbytes)] * bool(slot.nbytes)


@pytest.mark.parametrize("form", FORMS)
def test_values_of_all_devices_are_combined_on_the_stores(machine, kernels, order, form):
    values = [machine.made(X * 10**place, device) for place, device in enumerate([1, 0, 2, 1])]
    slot = machine.empty(piece(X, form).size, X.dtype)
    kernels.combine([piece(value, form) for value in values], slot, "sum")
    for value in values:
        machine.fill(value, -1)
    machine.run(order)
    assert view(slot).tolist() == (1111 * piece(X, form)).ravel().tolist()
    assert [copy[:2] for copy in machine.copies] == [(1, 0), (2, 0), (1, 0)] * bool(slot.nbytes)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("form", FORMS)
def test_an_out_on_another_device_is_written(machine, kernels, order, form, dtype):
    slot = machine.made(piece(X, form).flatten(), 0)
    out = machine.made(np.full(X.shape, 7, dtype), 2)
    seen = np.zeros(X.shape, dtype)
    with machine.on(2):  # read before the write
        machine.do(lambda: np.copyto(seen, view(out)))
    kernels.unpack(slot, piece(out, form))
    machine.fill(slot, -1)
    machine.run(order)
    expected = np.full(X.shape, 7, dtype)
    piece(expected, form)[...] = piece(X, form)
    assert view(out).tolist() == expected.tolist()
    assert (seen == 7).all()
    assert machine.copies == [(0, 2, slot.nbytes)] * bool(slot.nbytes)


def test_an_out_is_ordered_before_later_work_of_its_own_device(machine, kernels, order):
    slot, out = machine.made(X.flatten(), 0), machine.made(np.zeros_like(X), 1)
    found = np.zeros_like(X)
    kernels.unpack(slot, out)
    with machine.on(1):
        machine.do(lambda: np.copyto(found, view(out)))
    machine.run(order)
    assert found.tolist() == X.tolist()


def test_a_bucket_takes_each_value_the_way_it_needs(machine, kernels, order):
    devices = [0, 1, 0, 2]
    values = [machine.made(X + place, device) for place, device in enumerate(devices)]
    slots = [machine.empty(X.size, X.dtype) for _ in devices]
    table = kernels.pack_all(values, slots)
    assert table.alone == [1, 3]
    assert kernels.pack_all(values, slots, table) is table
    outs = [machine.made(np.zeros_like(X), device) for device in reversed(devices)]
    assert kernels.unpack_all(slots, outs).alone == [0, 2]
    machine.run(order)
    for place, (slot, out) in enumerate(zip(slots, outs, strict=True)):
        assert view(slot).tolist() == (X + place).ravel().tolist()
        assert view(out).tolist() == (X + place).tolist()
    assert machine.copies == [(1, 0, X.nbytes), (2, 0, X.nbytes)] * 2 + [
        (0, 2, X.nbytes),
        (0, 1, X.nbytes),
    ]


def test_nothing_crosses_where_there_is_one_device(machine, kernels):
    values, slot = [machine.made(X, 0) for _ in range(2)], machine.empty(X.size, X.dtype)
    kernels.pack(values[0], slot)
    kernels.combine(values, slot, "sum")
    kernels.unpack(slot, values[1])
    machine.run([0])
    assert view(values[1]).tolist() == (2 * X).tolist()
    assert machine.copies == []


def test_a_table_is_not_right_for_an_array_of_another_device(machine):
    values, slots = [machine.made(X, 0)], [machine.empty(X.size, X.dtype)]
    table = CopyTable(values, slots)
    with machine.on(1):
        elsewhere = machine.empty(X.shape, X.dtype)
    assert not table.matches([elsewhere], slots)
    assert CopyTable([elsewhere], slots).launches == []


def test_a_copy_stays_on_the_device_of_what_it_copies(machine, kernels, monkeypatch):
    import cupy

    def array(x: Any, order: str, copy: bool) -> Any:
        assert machine.current == x.device.id
        return machine.empty(x.shape, x.dtype)

    monkeypatch.setattr(cupy, "array", array)
    assert kernels.copy(machine.made(X, 2)).device.id == 2
