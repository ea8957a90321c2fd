"""Start of a communicator of GPUs, over the ranks' communicator of hosts."""

from __future__ import annotations

import ctypes
import logging
import os
import socket
from collections.abc import Sequence
from typing import Any

from ncclkv import env
from ncclkv.comm.base import Communicator
from ncclkv.comm.nccl.binding import version_text
from ncclkv.comm.nccl.communicator import NcclCommunicator
from ncclkv.comm.nccl.ctypes_binding import CtypesBinding
from ncclkv.comm.nccl.discovery import (
    DeviceInfo,
    device_of,
    launch_problem,
    max_ctas,
    settings,
    shared_gpus,
)
from ncclkv.comm.nccl.library import load
from ncclkv.comm.nccl.streams import DRIVER, CupyStreams
from ncclkv.comm.nccl.watcher import WATCHER
from ncclkv.errors import KVStoreError, LaunchError
from ncclkv.kernels.device.kernels import DeviceKernels
from ncclkv.system import watchdog

_log = logging.getLogger("ncclkv")


def survey(peers: Communicator) -> list[DeviceInfo]:
    """Choose this rank's GPU; return those of all ranks, in rank order; collective.

    Each rank's device becomes its current device.  `launch_problem` decides whether NCCL can run.
    """
    with watchdog.guard("finding the GPU", peers.timeout):
        info = _local_info(peers)
    return peers.control.allgather(info, "GPUs")


def launch(peers: Communicator, infos: Sequence[DeviceInfo] | None = None) -> NcclCommunicator:
    """Return a communicator of the ranks' GPUs; collective.

    Parameters
    ----------
    peers : Communicator
        The ranks in host memory; the new communicator owns it.
    infos : sequence of DeviceInfo, optional
        Result of `survey`; by default `survey` is called.

    Raises
    ------
    LaunchError
        On every rank, with the same text, when NCCL cannot run on these ranks.  On one rank, when
        NCCL refuses its GPU.
    CommTimeout
        When NCCL does not connect the ranks in time.
    """
    infos = survey(peers) if infos is None else infos
    problem = launch_problem(infos)
    if problem is not None:
        raise LaunchError(problem)
    device = infos[peers.rank].device
    binding = CtypesBinding(device, peers.timeout, max_ctas=max_ctas(infos))
    _log.info("NCCL %s is %s", version_text(binding.version()), binding.library.path)
    with watchdog.guard(f"making streams on GPU {device}", peers.timeout):
        streams = CupyStreams(device)
    return NcclCommunicator(
        peers,
        binding,
        streams,
        DeviceKernels(),
        settings=settings(infos, peers.rank),
        watcher=WATCHER,
        shared=bool(shared_gpus(infos)),
    )


def _local_info(peers: Communicator) -> DeviceInfo:
    """Return the GPU and libraries of this rank, or its obstacle."""
    rank, host = peers.rank, socket.gethostname()
    share = env.share_gpu()
    try:
        return _gpu(peers, host, share)
    except KVStoreError as error:
        return DeviceInfo(rank, host, share, obstacle=str(error))


def _import_cupy() -> Any:
    """Return CuPy; raise `LaunchError` without a driver, or with the command that installs CuPy."""
    try:
        ctypes.CDLL(DRIVER)  # fails faster than the import of CuPy
    except OSError as error:
        raise LaunchError(
            f"there is no NVIDIA driver ({DRIVER}); with one, pip install 'ncclkv[cuda12]' (or "
            f"'ncclkv[cuda13]', as the driver needs it)"
        ) from error
    try:
        import cupy
    except ImportError as error:
        raise LaunchError(
            f"CuPy cannot be imported ({error}); pip install 'ncclkv[cuda12]' (or 'ncclkv[cuda13]',"
            f" as the driver needs it)"
        ) from error
    return cupy


def _gpu(peers: Communicator, host: str, share: bool) -> DeviceInfo:
    """Return the GPU and libraries of a rank that has a GPU."""
    cupy = _import_cupy()
    nccl = load().version
    runtime = cupy.cuda.runtime
    try:
        devices = runtime.getDeviceCount()
        # A process alone stays on its current device.
        alone = peers.size == 1
        device = runtime.getDevice() if alone else device_of(peers.local_rank, devices)
        cupy.cuda.Device(device).use()
        # CuPy cuts the uuid at a zero byte; the bus id distinguishes equal rests.
        uuid = runtime.getDeviceProperties(device).get("uuid", b"").hex()
        bus = runtime.deviceGetPCIBusId(device)
        gpu = f"{bus} {uuid}"
        driver = runtime.driverGetVersion()
    except runtime.CUDARuntimeError as error:
        raise LaunchError(
            f"CuPy finds no GPU ({error}); see whether nvidia-smi lists one and "
            f"CUDA_VISIBLE_DEVICES hides none"
        ) from error
    return DeviceInfo(
        peers.rank,
        host,
        share,
        devices,
        device,
        gpu,
        nccl,
        cupy.__version__,
        driver,
        bus=bus,
        # Two containers of a host may have processes of one id.
        process=f"{os.getpid()}-{env.launched_rank()}",
        job=env.launched_size(),
    )
