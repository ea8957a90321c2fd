"""Compiled kernels as files, so that a later process need not compile them.

A file's name is a digest of all that its code depends on: source, headers, options, compiler and
architecture.  A file is written whole or not at all, and begins with a digest of its code.  When
the digest does not match, the kernel is compiled again.  Without access to files every process
compiles.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from ncclkv import env
from ncclkv.kernels.device.compiler import build, include_options
from ncclkv.kernels.device.sources import KernelSource, headers

_log = logging.getLogger("ncclkv")

_DIGEST_BYTES = hashlib.sha256().digest_size

# The headers of CUDA that sources include.
_OF_CUDA = ("cuda_fp16.h", "cuda_fp16.hpp", "cuda_bf16.h", "cuda_bf16.hpp")


def cubin(program: KernelSource, architecture: str) -> bytes:
    """Return the machine code of `program`, from its file or else by compiling it.

    Parameters
    ----------
    program : KernelSource
    architecture : str
        Such as ``"sm_90"``.

    Raises
    ------
    LaunchError
        When it has to be compiled, and `build` raises.
    """
    folder = _folder(env.kernel_cache())
    if folder is None:
        return build(program, architecture)
    path = folder / f"{program.name}-{architecture}-{_key(program, architecture)}.cubin"
    code = _read(path)
    if code is None:
        code = build(program, architecture)
        _write(path, code)
    return code


@cache
def _folder(named: str) -> Path | None:
    """Make the directory, for this user alone; None when there is to be none."""
    if not named:
        return None
    folder = Path(named)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        _log.info("ncclkv: kernels are compiled in every process: %s", error)
        return None
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        _log.warning(
            "ncclkv: kernels are compiled in every process, for others may write in %s; chmod 700 "
            "it, or set NCCLKV_KERNEL_CACHE to another directory",
            folder,
        )
        return None
    return folder


def _key(program: KernelSource, architecture: str) -> str:
    """Return the digest of what the code depends on."""
    from cupy.cuda import nvrtc

    parts = [
        program.name,
        program.source,
        *map(repr, headers().items()),
        *program.options,
        architecture,
        repr(nvrtc.getVersion()),
        _of_cuda(include_options()),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@cache
def _of_cuda(options: tuple[str, ...]) -> str:
    """Return the digest of CUDA's own headers, whose release may be another than NVRTC's."""
    digest = hashlib.sha256()
    for option in options:
        for name in _OF_CUDA:
            with suppress(OSError):
                digest.update(Path(option.removeprefix("-I"), name).read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> bytes | None:
    """Return the code in a file; None when there is none, or when it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    """Put a file in its place, whole; several ranks may do so at a time."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    except OSError as error:
        _log.info("ncclkv: a compiled kernel is not kept: %s", error)
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(name, path)
    except OSError as error:
        _log.info("ncclkv: a compiled kernel is not kept: %s", error)
        with suppress(OSError):
            os.unlink(name)
