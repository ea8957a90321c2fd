"""Images of kernels: shared libraries for the host, compiled by g++ from CUDA C++.

They are stored in a folder by a digest of all inputs. Several processes may make the same image at
once.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.nccl.emulated import compiler, kernel_options, kernel_text

HERE = Path(__file__).resolve().parent
PRELUDE = HERE / "prelude"
KEPT = HERE.parents[2] / "build" / "kernels"
"""Folder of images if EMULATED_KERNELS names none."""

FLAGS = (
    "-O1",
    "-fPIC",
    "-w",
    "-fvisibility=hidden",
    # CUDA's rules as far as C++ has settings: integers wrap, words may be read as other types.
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    # Fortified functions forbid changes between stacks.
    "-U_FORTIFY_SOURCE",
    # See prelude/undefined.cc.
    "-fsanitize=alignment,shift-exponent,integer-divide-by-zero,signed-integer-overflow",
)
LIMIT = 120.0
"""Seconds that one call of g++ may take."""

NOTE = "layer 3b: g++ compiles in the place of NVRTC; tests/nccl/emulated/README.md, Kernels\n"


class Refused(Exception):
    """Error of a source that g++ does not compile; the message is its log."""


@dataclass(frozen=True)
class Source:
    """The inputs of an image.

    Attributes
    ----------
    text : str
    name : str
        Name of the source in messages.
    headers : mapping of str to bytes
        Texts by the names under which they are included.
    options : sequence of str
        Options of NVRTC.
    expressions : sequence of str
        Name expressions: kernels that are instances of templates, or in namespaces.
    """

    text: str
    name: str = "default_program"
    headers: Mapping[str, bytes] = field(default_factory=dict)
    options: Sequence[str] = ()
    expressions: Sequence[str] = ()


def folder() -> Path:
    """Return the folder of images."""
    return Path(os.environ.get("EMULATED_KERNELS") or KEPT).resolve()


@cache
def digest() -> str:
    """Return a digest of all inputs of images except their sources."""
    files = [HERE / "kernel_text.py", HERE / "kernel_options.py", Path(__file__)]
    files += [HERE / "runtime" / "kernel.h", *filter(Path.is_file, PRELUDE.rglob("*"))]
    return compiler.digest(compiler.version(), compiler.digest_of(files))


def lowered(expression: str) -> str:
    """Return the name in an image of the kernel of a name expression."""
    return f"{re.sub(r'[^A-Za-z0-9]+', '_', expression)}_{compiler.digest(expression)}"


def image(source: Source, kept: Path | None = None) -> Path:
    """Return the file of a source's image; compile it if it is missing.

    Parameters
    ----------
    source : Source
    kept : pathlib.Path, optional
        The folder of images.

    Raises
    ------
    Refused
    kernel_options.Unknown
    """
    options = kernel_options.read(source.options)
    kept = (kept or folder()).resolve()
    key = compiler.digest(
        digest(),
        source.text,
        source.name,
        repr(sorted(source.headers.items())),
        repr(options),
        repr(sorted(source.expressions)),
    )
    path = kept / f"{key}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(prefix="emulated-") as work:
            _compile(source, options, Path(work), path)
    return path


def _compile(source: Source, options: kernel_options.Options, work: Path, target: Path) -> None:
    """Preprocess, add the entry points, compile and link."""
    for name, content in source.headers.items():
        header = work / "headers" / name
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_bytes(content)
    whole = work / "whole.cpp"
    # Line numbers are those of the source; a quote in the name would end it early.
    shown = Path(source.name).name.replace('"', "'") or "default_program"
    begin = ['#include "prelude.h"', kernel_text.BEGIN, *options.macros, f'#line 1 "{shown}"']
    whole.write_text("\n".join([*begin, source.text, ""]))
    include = [f"-I{path}" for path in (PRELUDE, PRELUDE / "include", work / "headers")]
    text = _gxx([*FLAGS, *include, *options.of_gxx(), "-E", str(whole)])
    prelude, mark, own = text.partition(kernel_text.BEGIN)
    names = kernel_text.kernels(own)
    functions = [(name, name) for name in names]
    functions += [(lowered(expression), expression) for expression in source.expressions]
    ready, objects, library = work / "ready.ii", work / "ready.o", work / "ready.so"
    ready.write_text(
        prelude
        + mark
        + kernel_text.renamed(kernel_text.with_dynamic_shared(own), names)
        + kernel_text.entry_points(
            [(name, shown, kernel_text.own_name(shown, names)) for name, shown in functions],
            _flushes(options, source.text),
        )
    )
    _gxx([*FLAGS, *options.of_gxx(), "-c", str(ready), "-o", str(objects)])
    target.parent.mkdir(parents=True, exist_ok=True)
    # The path names the library, so an image outside of the folder finds it, too.
    threads = _threads(target.parent)
    _gxx(["-shared", "-s", str(objects), str(threads), "-o", str(library), "-Wl,-z,defs"])
    _put(library, target)


def _flushes(options: kernel_options.Options, text: str) -> bool:
    """Return whether the processor flushes subnormal numbers; it would flush doubles, too."""
    return options.flushes and not re.search(r"\bdouble\b", text)


def _threads(kept: Path) -> Path:
    """Return the library that runs the threads of all kernels; compile it once."""
    target = kept / f"libemulated_threads-{digest()}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(prefix="emulated-") as work:
            library = Path(work) / "threads.so"
            # Never unloaded: threads of the host have their stacks in it.
            flags = (*compiler.OWN_FLAGS, "-U_FORTIFY_SOURCE", "-shared", "-Wl,-z,nodelete")
            _gxx([*flags, *map(str, sorted(PRELUDE.glob("*.cc"))), "-o", str(library)])
            _put(library, target)
    return target


def _put(file: Path, target: Path) -> None:
    """Move a file to its final path in one step; several processes may do so at a time."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as copy:
            copy.write(file.read_bytes())
        os.chmod(name, 0o755)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _gxx(arguments: Sequence[str]) -> str:
    """Call g++; return its output."""
    ended = subprocess.run(
        [compiler.gxx(), *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        # messages in ASCII
        env={**os.environ, "LC_ALL": "C"},
        check=False,
    )
    if ended.returncode:
        raise Refused(ended.stderr + NOTE)
    return ended.stdout
