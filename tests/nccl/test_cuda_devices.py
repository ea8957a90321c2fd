"""Layer 0: streams, memory and copies from the host, with several devices in a process."""

from __future__ import annotations

import gc

import numpy as np
import pytest

pytest.importorskip("cupy", reason="these tests need CuPy: pip install 'ncclkv[cuda12]'")

import cupy

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
