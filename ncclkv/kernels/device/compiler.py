"""Compilation of kernel sources to machine code, by NVRTC."""

from __future__ import annotations

import struct

from ncclkv.errors import LaunchError
from ncclkv.kernels.device.sources import KernelSource, headers

_TABLES = struct.Struct("<QQ6xHHHH")
"""Fields ``e_phoff``, ``e_shoff``, and ``e_phentsize`` to ``e_shnum`` of an ELF header."""


def build(program: KernelSource, architecture: str) -> bytes:
    """Compile `program` for an architecture; no device is needed.

    CuPy's own compiler cannot be used: it flushes subnormal numbers to zero, unlike NumPy.

    Parameters
    ----------
    program : KernelSource
    architecture : str
        Such as ``"sm_90"``.

    Returns
    -------
    bytes
        A cubin.

    Raises
    ------
    LaunchError
        When NVRTC is missing or fails; the message has its log.
    """
    from cupy.cuda import nvrtc

    options = (*program.options, f"--gpu-architecture={architecture}", *include_options())
    included = headers()
    try:
        handle = nvrtc.createProgram(
            program.source, f"{program.name}.cu", tuple(included.values()), tuple(included.keys())
        )
    except RuntimeError as error:
        raise LaunchError(
            f"kernel {program}: NVRTC, which compiles it, cannot be used; install it with: "
            f"pip install nvidia-cuda-nvrtc-cu12 (or -cu13, as CuPy is)\n{error}"
        ) from error
    try:
        nvrtc.compileProgram(handle, options)
        code = whole(nvrtc.getCUBIN(handle))
    except nvrtc.NVRTCError as error:
        raise LaunchError(
            f"kernel {program}: NVRTC does not compile it for {architecture}; install NVRTC and "
            "the CUDA runtime's headers of one release: pip install -U nvidia-cuda-nvrtc-cu12 "
            f"nvidia-cuda-runtime-cu12 (or -cu13, as CuPy is)\n{error}\n"
            f"{nvrtc.getProgramLog(handle)}"
        ) from error
    finally:
        nvrtc.destroyProgram(handle)
    return code


def whole(code: bytes) -> bytes:
    """Return a cubin up to the end in its ELF header: CuPy drops the last byte, a zero."""
    # Start, entry size and number of entries of the two tables of an ELF file.
    start, other_start, size, count, other_size, other_count = _TABLES.unpack_from(code, 32)
    return code.ljust(max(start + size * count, other_start + other_size * other_count), b"\0")


def include_options() -> tuple[str, ...]:
    """Return the include option for ``cuda_fp16.h`` and ``cuda_bf16.h``, if they are found."""
    from cuda.pathfinder import find_nvidia_header_directory

    folder = find_nvidia_header_directory("cudart")
    return () if folder is None else (f"-I{folder}",)
