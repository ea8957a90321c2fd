"""Layer 4, several GPUs of one process: a push of arrays on each, and a pull into them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ncclkv
from ncclkv.errors import UsageError
from tests.conformance.captures import CODECS
from tests.nccl import gpu
from tests.nccl.alone_cases import POWERSGD
from tests.nccl.gpu import need_gpu

SHAPE = (300, 700)


@pytest.fixture
def devices() -> list[Any]:
    """Return CuPy's GPUs; the first, the store's, is the current one."""
    need_gpu()
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    if count < 2:
        pytest.skip("several GPUs of one process: this process sees 1")
    cupy.cuda.Device(0).use()
    return [cupy.cuda.Device(number) for number in range(count)]


def on_each(devices: list[Any], busy: bool) -> list[Any]:
    """Return an array full of d + 1 on each GPU d, which a busy stream may write late."""
    import cupy

    arrays = []
    for number, device in enumerate(devices):
        with device:
            array = cupy.zeros(SHAPE, np.float32)
            if busy:
                other = cupy.ones(gpu.busy(2**26), np.float32)
                for _ in range(20):
                    other *= 2
            array += number + 1
            arrays.append(array)
    return arrays


@pytest.mark.parametrize("busy", [False, True])
def test_a_push_list_is_summed_and_pulled_into_arrays_of_all(devices: list[Any], busy: bool):
    total = len(devices) * (len(devices) + 1) // 2
    with ncclkv.create("device") as kv:
        kv.init("w", np.zeros(SHAPE, np.float32))
        for step in range(1, 4):
            values = on_each(devices, busy)
            kv.push("w", values)
            for value, device in zip(values, devices, strict=True):
                with device:
                    value.fill(-1)
            outs = on_each(devices, busy)
            kv.pull("w", out=outs)
            for out, device in zip(outs, devices, strict=True):
                assert out.device == device
                assert (out.get() == total).all(), f"step {step}, {device}"


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("codec", [*CODECS, POWERSGD], ids=lambda codec: codec["type"])
def test_arrays_of_all_are_encoded_one_by_one(
    devices: list[Any], busy: bool, codec: dict[str, Any]
):
    """Compare bits with a store in host memory; those of powersgd differ in the last ones."""
    with ncclkv.create("device") as kv, ncclkv.create("local") as on_host:
        for each in kv, on_host:
            each.set_gradient_compression(codec)
            each.init("w", np.zeros(SHAPE, np.float32))
        for _ in range(3):
            values = on_each(devices, busy)
            kv.push("w", values)
            for number, (value, device) in enumerate(zip(values, devices, strict=True)):
                with device:
                    value.fill(-1)
                values[number] = np.full(SHAPE, number + 1, np.float32)
            on_host.push("w", values)
            found, wanted = kv.pull("w").get(), on_host.pull("w")
            if codec is POWERSGD:
                np.testing.assert_allclose(found, wanted, rtol=1e-4)
            else:
                assert np.array_equal(found, wanted)


@pytest.mark.parametrize("form", ["strided", "of another dtype"])
def test_outs_of_any_form(devices: list[Any], form: str):
    import cupy

    value = np.arange(SHAPE[0] * SHAPE[1], dtype=np.float32).reshape(SHAPE)
    with ncclkv.create("device") as kv:
        kv.init("w", value)
        with devices[1]:
            out = (
                cupy.zeros((SHAPE[0], 2 * SHAPE[1]), np.float32)[:, ::2]
                if form == "strided"
                else cupy.zeros(SHAPE, np.float64)
            )
            pushed = cupy.asarray(np.ascontiguousarray(value.T)).T
        kv.push("w", pushed)
        kv.pull("w", out=out)
        assert np.array_equal(out.get(), value)


def test_a_store_is_not_used_from_another_gpu(devices: list[Any]):
    with ncclkv.create("device") as kv:
        kv.init("w", np.zeros(SHAPE, np.float32))
        with devices[1], pytest.raises(UsageError, match="device 1 is current"):
            kv.push("w", np.ones(SHAPE, np.float32))
        kv.push("w", np.ones(SHAPE, np.float32))
        assert (kv.pull("w").get() == 1).all()
