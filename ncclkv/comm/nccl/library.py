"""Library: finds and loads libnccl, and declares its functions.

A copy that CuPy or torch has loaded is preferred: two copies in a process share no settings, and
take twice the memory.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ncclkv.errors import LaunchError

SONAME = "libnccl.so.2"

UNIQUE_ID_BYTES = 128

_MAGIC = 0xCAFEBEEF  # NCCL_API_MAGIC
_UNSET = -(2**31)  # NCCL_CONFIG_UNDEF_INT


class UniqueId(ctypes.Structure):
    """``ncclUniqueId``, which NCCL takes by value."""

    _fields_ = (("internal", ctypes.c_char * UNIQUE_ID_BYTES),)


class Config(ctypes.Structure):
    """``ncclConfig_t`` of NCCL 2.17, which is the begin of the structure of later versions.

    NCCL copies `size` bytes and uses its defaults for the fields beyond them.

    Parameters
    ----------
    blocking : bool
        Whether each call returns only when NCCL has completed it.
    max_ctas : int, optional
        Maximum count of blocks of a kernel; by default NCCL chooses.
    """

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cgaClusterSize", ctypes.c_int),
        ("minCTAs", ctypes.c_int),
        ("maxCTAs", ctypes.c_int),
        ("netName", ctypes.c_char_p),
        ("splitShare", ctypes.c_int),
    )

    def __init__(self, blocking: bool = True, max_ctas: int | None = None) -> None:
        super().__init__(
            size=ctypes.sizeof(Config),
            magic=_MAGIC,
            version=21700,
            blocking=int(blocking),
            cgaClusterSize=_UNSET,
            minCTAs=_UNSET,
            maxCTAs=_UNSET if max_ctas is None else max_ctas,
            netName=None,
            splitShare=_UNSET,
        )


_INT, _COUNT, _POINTER = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
_RETURNED_INT = ctypes.POINTER(ctypes.c_int)

PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (_RETURNED_INT,),
    "ncclGetUniqueId": (ctypes.POINTER(UniqueId),),
    "ncclCommInitRankConfig": (
        ctypes.POINTER(_POINTER),
        _INT,
        UniqueId,
        _INT,
        ctypes.POINTER(Config),
    ),
    "ncclCommGetAsyncError": (_POINTER, _RETURNED_INT),
    "ncclCommFinalize": (_POINTER,),
    "ncclCommDestroy": (_POINTER,),
    "ncclCommAbort": (_POINTER,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    # Addresses and counts, then the dtype, the op or the peer, the communicator and the stream.
    "ncclAllReduce": (_POINTER, _POINTER, _COUNT, _INT, _INT, _POINTER, _POINTER),
    "ncclReduce": (_POINTER, _POINTER, _COUNT, _INT, _INT, _INT, _POINTER, _POINTER),
    "ncclBroadcast": (_POINTER, _POINTER, _COUNT, _INT, _INT, _POINTER, _POINTER),
    "ncclReduceScatter": (_POINTER, _POINTER, _COUNT, _INT, _INT, _POINTER, _POINTER),
    "ncclAllGather": (_POINTER, _POINTER, _COUNT, _INT, _POINTER, _POINTER),
    "ncclSend": (_POINTER, _COUNT, _INT, _INT, _POINTER, _POINTER),
    "ncclRecv": (_POINTER, _COUNT, _INT, _INT, _POINTER, _POINTER),
}
"""Functions that return an ``ncclResult_t``, with the types of their arguments (``nccl.h``)."""

_TEXTS = {"ncclGetErrorString": (_INT,), "ncclGetLastError": (_POINTER,)}


@dataclass(frozen=True)
class NcclLibrary:
    """A loaded libnccl.

    Parameters
    ----------
    loaded : ctypes.CDLL
        Calls through it release Python's lock.
    """

    loaded: Any

    @cached_property
    def version(self) -> int:
        """The version code, such as 23203 for 2.32.3."""
        function = self.loaded.ncclGetVersion
        function.argtypes = PROTOTYPES["ncclGetVersion"]
        code = ctypes.c_int()
        function(ctypes.byref(code))
        return code.value

    @cached_property
    def path(self) -> str:
        """Path of the file; the soname if the system does not list the file."""
        address = ctypes.cast(self.loaded.ncclGetVersion, ctypes.c_void_p).value or 0
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, *rest = line.split(maxsplit=5)
            start, end = (int(bound, 16) for bound in addresses.split("-"))
            if start <= address < end and len(rest) == 5:
                return rest[4]
        return SONAME

    def declare(self) -> Any:
        """Return the library with the types of all functions set.

        Raises
        ------
        LaunchError
            When a function is missing, as in versions before 2.14.
        """
        for name, types in (*PROTOTYPES.items(), *_TEXTS.items()):
            try:
                function = getattr(self.loaded, name)
            except AttributeError as error:
                raise LaunchError(
                    f"{self.path} has no {name}: this NCCL is too old; pip install -U "
                    f"nvidia-nccl-cu12 (or -cu13)"
                ) from error
            function.argtypes = types
            function.restype = ctypes.c_char_p if name in _TEXTS else ctypes.c_int
        return self.loaded


@cache
def load() -> NcclLibrary:
    """Return the NCCL of this process: a loaded copy, or that of NVIDIA's wheel or of the system.

    Raises
    ------
    LaunchError
        When no library is found.
    """
    candidates = [
        (SONAME, os.RTLD_NOLOAD | os.RTLD_NOW),
        *((str(path), os.RTLD_NOW) for path in _wheel_libraries()),
        (SONAME, os.RTLD_NOW),
    ]
    for name, mode in candidates:
        try:
            return NcclLibrary(ctypes.CDLL(name, mode=mode))
        except OSError as error:
            reason = error
    raise LaunchError(
        f"there is no NCCL library ({reason}); pip install 'ncclkv[cuda12]' (or 'ncclkv[cuda13]', "
        f"as the driver needs it), or load an NCCL before ncclkv"
    )


def _wheel_libraries() -> list[Path]:
    """Return the library of nvidia-nccl-cu12 or nvidia-nccl-cu13, which share a directory."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return []
    folders = () if spec is None else spec.submodule_search_locations or ()
    paths = [Path(folder) / "lib" / SONAME for folder in folders]
    return [path for path in paths if path.exists()]
