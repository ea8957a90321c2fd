"""Layer 0: a rank's discovery of its device, on a stand-in for `cupy.cuda`."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("cupy", reason="these tests need CuPy: pip install 'ncclkv[cuda12]'")

import cupy

from ncclkv.comm.nccl import start
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.errors import LaunchError
from tests.nccl.fake_cuda import cuda

__all__ = ["cuda"]


def test_facts_are_those_of_the_rank_and_its_device(cuda, monkeypatch):
    monkeypatch.setattr(start, "load", lambda: SimpleNamespace(version=23203))
    monkeypatch.setattr(start.socket, "gethostname", lambda: "node7")
    cuda.runtime.getDeviceCount.return_value = 4
    cuda.runtime.getDeviceProperties.return_value = {"uuid": b"\xab\xcd"}
    cuda.runtime.deviceGetPCIBusId.return_value = "0000:1B:00.0"
    cuda.runtime.driverGetVersion.return_value = 12080
    peers = SoloCommunicator(1.0)
    peers.size, peers.local_rank = 8, 6
    (own,) = start.survey(peers)
    cuda.Device.assert_called_once_with(2)
    cuda.Device.return_value.use.assert_called_once_with()
    assert (own.rank, own.host, own.devices, own.device) == (0, "node7", 4, 2)
    assert (own.gpu, own.bus) == ("0000:1B:00.0 abcd", "0000:1B:00.0")
    assert (own.nccl, own.cupy, own.driver) == (23203, cupy.__version__, 12080)
    assert (own.share, own.obstacle) == (False, "")


def test_a_process_by_itself_stays_on_its_device(cuda, monkeypatch):
    monkeypatch.setattr(start, "load", lambda: SimpleNamespace(version=23203))
    cuda.runtime.getDeviceCount.return_value = 4
    cuda.runtime.getDevice.return_value = 3
    cuda.runtime.getDeviceProperties.return_value = {}
    (own,) = start.survey(SoloCommunicator(1.0))
    assert own.device == 3


def test_without_nccl_the_reason_is_recorded(monkeypatch):
    def missing() -> None:
        raise LaunchError("there is no NCCL library")

    monkeypatch.setattr(start, "DRIVER", "libc.so.6")
    monkeypatch.setattr(start, "load", missing)
    (own,) = start.survey(SoloCommunicator(1.0))
    assert own.obstacle == "there is no NCCL library"


def test_without_cupy_the_package_to_install_is_recorded(monkeypatch):
    monkeypatch.setattr(start, "DRIVER", "libc.so.6")
    monkeypatch.setitem(sys.modules, "cupy", None)
    (own,) = start.survey(SoloCommunicator(1.0))
    assert "CuPy cannot be imported" in own.obstacle
    assert "pip install 'ncclkv[cuda12]'" in own.obstacle
