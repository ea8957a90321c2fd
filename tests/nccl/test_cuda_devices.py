"""Layer 0: streams, memory and copies from the host, with several devices in a process."""

from __future__ import annotations

import gc
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy", reason="these tests need CuPy: pip install 'ncclkv[cuda12]'")

import cupy

from ncclkv.arrays import cupy as arrays
from ncclkv.comm.nccl.streams import CupyStreams
from ncclkv.kernels.device.staging import Staging, download
from tests.nccl.fake_devices import Devices, Slot

OWN, OTHER = 1, 0


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Devices:
    return Devices(monkeypatch)


@pytest.fixture
def streams(devices: Devices) -> CupyStreams:
    """Return the streams of device 1, while another device is current."""
    streams = CupyStreams(OWN)
    devices.current = OTHER
    return streams


def test_a_store_s_streams_are_of_its_device(devices, streams):
    assert devices.device_of(streams.communication) == OWN
    assert devices.device_of(streams.begin_capture()) == OWN
    assert devices.device_of(streams.another().communication) == OWN


def test_its_stream_is_made_current_where_another_device_is(devices, streams):
    with streams.on(streams.communication):
        assert devices.current == OWN
    with streams.on(12345):
        assert devices.current == OWN
    assert devices.current == OTHER


@pytest.mark.parametrize("address", [None, 12345], ids=["its own", "another"])
@pytest.mark.parametrize("inside", [True, False], ids=["in a with block", "outside"])
def test_a_stream_that_was_chosen_by_use_is_current_again(devices, streams, address, inside):
    devices.current = OWN
    enclosing, chosen = devices.Stream(), devices.Stream()
    with enclosing if inside else nullcontext():
        chosen.use()
        devices.current = OTHER
        with streams.on(address or streams.communication):
            assert devices.stream_of().ptr == (address or streams.communication)
            # The program's own code may run here, and leaves with CuPy's rule.
            with devices.Stream():
                pass
            assert devices.stream_of().ptr == (address or streams.communication)
            devices.current = OTHER
        assert devices.current == OTHER
        assert devices.stream_of(OWN) is chosen
        devices.current = OWN


def test_the_current_stream_of_torch_becomes_that_of_cupy(devices, monkeypatch):
    of_torch = {OTHER: 55, OWN: 77}
    cuda = SimpleNamespace(current_stream=lambda n: SimpleNamespace(cuda_stream=of_torch[n]))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    default = devices.stream_of(OWN)
    with arrays.on_torch_stream(OWN):
        assert devices.current == OWN
        assert devices.stream_of().ptr == 77
    assert devices.stream_of(OWN) is default
    devices.current = OWN
    chosen = devices.Stream().use()
    devices.current = OTHER
    with arrays.on_torch_stream(OWN):
        assert devices.stream_of().ptr == 77
    assert devices.current == OTHER
    assert devices.stream_of(OWN) is chosen


def test_a_thread_gets_back_the_device_that_it_has_used(devices, streams):
    devices.has_context = True
    give_back = streams.use_device()
    assert devices.current == OWN
    give_back()
    assert devices.current == OTHER


def test_no_context_is_made_for_a_thread_that_has_used_no_device(devices, streams):
    devices.has_context = False
    assert streams.use_device() is None
    assert devices.current == OWN


def test_a_thread_on_the_device_stays_there(devices, streams):
    devices.current, devices.has_context = OWN, True
    assert streams.use_device() is None
    assert devices.current == OWN


def test_its_memory_is_of_its_device(devices, streams):
    assert streams.allocate(256).nbytes == 256
    assert devices.allocated == [(256, OWN)]
    assert devices.current == OTHER


def test_the_stream_before_the_current_one_lives_on(devices, streams):
    """Check that a stream that its owner has dropped can still be waited for."""
    devices.current = OWN
    addresses = []
    for _ in range(3):
        stream = devices.Stream()
        addresses.append(stream.ptr)
        devices.use(stream)
        del stream
        # A second query of the same stream changes nothing.
        assert streams.current() == streams.current() == addresses[-1]
        gc.collect()
        if len(addresses) > 1:
            streams.wait(streams.communication, streams.record(addresses[-2]))
    assert addresses[0] in devices.destroyed, "streams of long ago are kept"


def test_page_locked_memory_is_held_until_its_copy_is_over(devices):
    staging, slots = Staging(), [Slot(devices, 3) for _ in range(4)]
    for number, slot in enumerate(slots[:3]):
        staging.upload(np.full(3, number, np.float32), slot)
    # The first copy is complete, and no event shows it yet.
    devices.step(1)
    staging.upload(np.full(3, 3, np.float32), slots[3])
    devices.step()
    assert [slot.values.tolist() for slot in slots] == [[float(n)] * 3 for n in range(4)]


def test_page_locked_memory_is_given_back_when_its_copy_is_over(devices):
    staging, slot = Staging(), Slot(devices, 3)
    for _ in range(10):
        staging.upload(np.ones(3, np.float32), slot)
        devices.step()
    assert len(staging._busy) == 1


def test_a_look_at_staged_memory_sees_that_the_device_is_lost(devices, monkeypatch):
    staging, slot = Staging(), Slot(devices, 3)
    staging.upload(np.ones(3, np.float32), slot)
    monkeypatch.setattr(cupy.cuda.runtime, "eventQuery", lambda event: 700)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="cudaErrorIllegalAddress"):
        staging.upload(np.ones(3, np.float32), slot)


def test_a_copy_that_waits_behind_its_event_would_read_what_is_gone(devices):
    """Check that the event follows the copy: when the event is done, the copy is done."""
    staging, first, second = Staging(), Slot(devices, 3), Slot(devices, 3)
    staging.upload(np.full(3, 7, np.float32), first)
    devices.step(1)
    staging.upload(np.full(3, 8, np.float32), second)
    devices.step()
    assert first.values.tolist() == [7.0] * 3
    assert second.values.tolist() == [8.0] * 3


class OnDevice(np.ndarray):  # type: ignore[type-arg]
    """An array whose ``get`` compares shapes, as CuPy's does."""

    def get(self, out=None):
        if out is None:
            return np.array(self)
        assert out.shape == self.shape, "CuPy: Shape mismatch"
        np.copyto(out, self)
        return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_value_of_any_shape_is_copied_to_an_out_of_any_shape(dtype):
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    for taken in ((6,), (2, 3), (1, 6)):
        for shape in ((6,), (2, 3), (3, 2)):
            out = np.zeros(shape, dtype)
            download(value.reshape(taken).view(OnDevice), out)
            assert out.tolist() == value.reshape(shape).tolist()
