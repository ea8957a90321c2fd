"""Look at GPUs: the program of a child, which loads libnccl, the driver and CuPy."""

from __future__ import annotations

import ctypes
import sys

from ncclkv import env
from ncclkv.comm.nccl.binding import version_text
from ncclkv.comm.nccl.library import load
from ncclkv.comm.nccl.start import survey
from ncclkv.comm.nccl.streams import DRIVER
from ncclkv.comm.solo import SoloCommunicator
from ncclkv.doctor.probe import end_with_parent, tell
from ncclkv.errors import LaunchError


def look() -> None:
    """Tell the parent of libnccl, the driver, and the GPUs, each as soon as it is found."""
    end_with_parent()
    try:
        library = load()
        tell("nccl", [version_text(library.version), library.path])
    except LaunchError as error:
        tell("no nccl", str(error))
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return
    tell("driver", DRIVER)
    try:
        [info] = survey(SoloCommunicator(env.DEFAULT_TIMEOUT))
    except LaunchError:  # a wrong variable, which has a row of its own
        return
    if info.obstacle:
        tell("obstacle", info.obstacle)
        return
    runtime = sys.modules["cupy"].cuda.runtime
    names = [runtime.getDeviceProperties(each)["name"] for each in range(info.devices)]
    tell("cuda", f"{info.driver // 1000}.{info.driver % 1000 // 10}")
    tell("devices", [name.decode() for name in names])
