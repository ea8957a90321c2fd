"""Cubins: compiled kernels in files, which save later processes the compilation.

A file's name is a digest of source, headers, options, compiler and architecture.  A file is written
whole or not at all, and begins with a digest of its code.  If the digest does not match, the kernel
is compiled again.  Without access to the directory every process compiles.

The folder is ``ncclkv/kernels`` of ``XDG_CACHE_HOME`` or ``~/.cache``.  ``NCCLKV_KERNEL_CACHE``
names another one, and ``0`` turns the files off.
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

# Headers of CUDA that the sources include.
_CUDA_HEADERS = ("cuda_fp16.h", "cuda_fp16.hpp", "cuda_bf16.h", "cuda_bf16.hpp")


def cubin(program: KernelSource, architecture: str) -> bytes:
    """Return the machine code of a kernel: read from its file; compiled if there is no good file.

    Parameters
    ----------
    program : KernelSource
    architecture : str
        Such as ``"sm_90"``.

    Raises
    ------
    LaunchError
        When `build` cannot compile it.
    """
    folder = _private_folder(env.kernel_cache())
    if folder is None:
        return build(program, architecture)
    path = folder / f"{program.name}-{architecture}-{_key(program, architecture)}.cubin"
    code = _read(path)
    if code is None:
        code = build(program, architecture)
        _write(path, code)
    return code


@cache
def _private_folder(named: str) -> Path | None:
    """Make and return the directory of cubins; None if it is turned off or not private."""
    if not named:
        return None
    folder = Path(named)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        _log.info(
            "ncclkv: every process compiles its kernels, because %s cannot be used: %s",
            folder,
            error,
        )
        return None
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        _log.warning(
            "ncclkv: every process compiles its kernels, because other users may write to %s; "
            "chmod 700 it, or set NCCLKV_KERNEL_CACHE to another directory",
            folder,
        )
        return None
    return folder


def _key(program: KernelSource, architecture: str) -> str:
    """Return the digest of everything that the machine code depends on."""
    from cupy.cuda import nvrtc

    parts = [
        program.name,
        program.source,
        *map(repr, headers().items()),
        *program.options,
        architecture,
        repr(nvrtc.getVersion()),
        _cuda_headers_digest(include_options()),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@cache
def _cuda_headers_digest(options: tuple[str, ...]) -> str:
    """Return the digest of CUDA's headers, whose release may differ from that of NVRTC."""
    digest = hashlib.sha256()
    for option in options:
        for name in _CUDA_HEADERS:
            with suppress(OSError):
                digest.update(Path(option.removeprefix("-I"), name).read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> bytes | None:
    """Return the code in a file; None if the file is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    """Write a file whole; several ranks may write it concurrently."""
    name = ""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(name, path)
    except OSError as error:
        _log.info("ncclkv: the compiled kernel %s cannot be written: %s", path, error)
        with suppress(OSError):
            os.unlink(name)
