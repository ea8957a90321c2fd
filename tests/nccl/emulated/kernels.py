"""A replacement of NVRTC in CuPy's binding by g++: see kernel_images.py.

`install` replaces functions of ``cupy_backends.cuda.libs.nvrtc``, so that no part of NVRTC is
loaded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from tests.nccl.emulated import kernel_images, kernel_options

RESULTS = {
    4: "NVRTC_ERROR_INVALID_PROGRAM",
    5: "NVRTC_ERROR_INVALID_OPTION",
    6: "NVRTC_ERROR_COMPILATION",
    9: "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
    10: "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
}
"""Codes of nvrtcResult that this module returns."""

INVALID_PROGRAM, INVALID_OPTION, COMPILATION, NOT_COMPILED, NOT_AN_EXPRESSION = RESULTS


@dataclass
class _Program:
    """A program from its creation to its end."""

    text: str
    name: str
    headers: dict[str, bytes]
    expressions: list[str] = field(default_factory=list)
    log: str = ""
    is_real: bool = False
    image: bytes | None = None

    def compile(self, options: Sequence[str]) -> None:
        self.is_real = kernel_options.read(options).is_real
        source = kernel_images.Source(self.text, self.name, self.headers, options, self.expressions)
        self.image = kernel_images.image(source).read_bytes() if self.text.strip() else b""


class Nvrtc:
    """The functions of CuPy's binding.

    Parameters
    ----------
    error : callable
        Makes the binding's error from a code.
    version : callable
        Returns the version of CUDA, as 12090.
    """

    def __init__(self, error: Callable[[int], Exception], version: Callable[[], int]) -> None:
        self._error = error
        self._version = version
        self._programs: dict[int, _Program] = {}
        self._handles = itertools.count(1)

    def getVersion(self) -> tuple[int, int]:
        """Return the version of the emulated CUDA runtime."""
        version = self._version()
        return version // 1000, version % 1000 // 10

    def getSupportedArchs(self) -> tuple[int, ...]:
        """Return the compute capability of the emulated devices."""
        return (90,)

    def createProgram(
        self, src: str, name: str, headers: Sequence[bytes], include_names: Sequence[bytes]
    ) -> int:
        """Begin a program."""
        handle = next(self._handles)
        named = {key.decode(): text for key, text in zip(include_names, headers, strict=True)}
        self._programs[handle] = _Program(src, name, named)
        return handle

    def destroyProgram(self, prog: int) -> None:
        """End a program."""
        self._find(prog)
        del self._programs[prog]

    def addNameExpression(self, prog: int, name: str) -> None:
        """Request a kernel by an expression, before the compilation."""
        self._find(prog).expressions.append(name)

    def compileProgram(self, prog: int, options: Sequence[str]) -> None:
        """Compile a program with g++, or use its stored image."""
        program = self._find(prog)
        try:
            program.compile(tuple(options))
        except kernel_options.Unknown as unknown:
            program.log = f"{unknown}\n"
            raise self._error(INVALID_OPTION) from None
        except kernel_images.Refused as refused:
            program.log = str(refused)
            raise self._error(COMPILATION) from None

    def getLoweredName(self, prog: int, name: str) -> str:
        """Return the name of an expression's kernel in the image."""
        program = self._find(prog)
        if program.image is None:
            raise self._error(NOT_COMPILED)
        if name not in program.expressions:
            raise self._error(NOT_AN_EXPRESSION)
        return kernel_images.lowered(name)

    def getCUBIN(self, prog: int) -> bytes:
        """Return the image without its last byte, which CuPy cuts off."""
        program = self._compiled(prog)
        if not program.is_real:
            raise RuntimeError("cubin is requested, but the real arch (sm_XX) is not provided")
        assert program.image is not None
        return program.image[:-1]

    def getPTX(self, prog: int) -> bytes:
        """Return the comments of an empty program, by which CuPy identifies the compiler."""
        if self._compiled(prog).image:
            raise RuntimeError("emulated: PTX is not emulated; ask for an architecture sm_XX")
        return f"//\n// Compiled for the host by layer 3b: {kernel_images.digest()}\n//\n".encode()

    def getLTOIR(self, prog: int) -> bytes:
        """Refuse the call."""
        raise RuntimeError("emulated: LTO IR is not emulated")

    def getProgramLog(self, prog: int) -> str:
        """Return g++'s output."""
        return self._find(prog).log

    def _find(self, handle: int) -> _Program:
        if handle not in self._programs:
            raise self._error(INVALID_PROGRAM)
        return self._programs[handle]

    def _compiled(self, handle: int) -> _Program:
        program = self._find(handle)
        if program.image is None:
            raise self._error(INVALID_PROGRAM)
        return program


def install(nvrtc: ModuleType) -> None:
    """Replace the functions of CuPy's binding of NVRTC."""

    def describe(self: Any, status: int) -> None:
        self.status = status
        RuntimeError.__init__(self, f"{RESULTS.get(status, 'NVRTC_ERROR')} ({status})")

    def version() -> int:
        from cupy_backends.cuda.api import runtime

        found: int = runtime.runtimeGetVersion()
        return found

    # The binding's own function asks NVRTC for the text.
    nvrtc.NVRTCError.__init__ = describe  # type: ignore[attr-defined]
    ours = Nvrtc(nvrtc.NVRTCError, version)
    for name in vars(Nvrtc):
        if not name.startswith("_"):
            setattr(nvrtc, name, getattr(ours, name))
