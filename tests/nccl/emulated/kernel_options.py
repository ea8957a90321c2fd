"""Options of NVRTC for which g++ has equivalents: "NVRTC", Supported Compile Options."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_SHORT = {
    "-arch": "--gpu-architecture",
    "-std": "--std",
    "-D": "--define-macro",
    "-U": "--undefine-macro",
    "-I": "--include-path",
    "-fmad": "--fmad",
    "-ftz": "--ftz",
    "-prec-div": "--prec-div",
    "-prec-sqrt": "--prec-sqrt",
    "-G": "--device-debug",
    "-lineinfo": "--generate-line-info",
    "-restrict": "--restrict",
    "-w": "--disable-warnings",
    "-default-device": "--device-as-default-execution-space",
    "-pch": "--pch",
    "-maxrregcount": "--maxrregcount",
}
_WITHOUT_EFFECT = {
    "--device-debug",
    "--generate-line-info",
    "--restrict",
    "--disable-warnings",
    "--device-as-default-execution-space",
    "--pch",
    "--maxrregcount",
}
"""Options that change no result of a kernel here."""

_STANDARDS = ("c++03", "c++11", "c++14", "c++17", "c++20")


class Unknown(Exception):
    """Error of an option that NVRTC does not have, or that is not emulated."""


@dataclass
class Options:
    """The options of one compilation.

    Attributes
    ----------
    architecture : str
        Such as ``"sm_90"`` or ``"compute_90"``.
    standard : str
    macros : list of str
        Lines for the preprocessor after the prelude.
    folders : list of pathlib.Path
        Folders of headers, without CUDA's, which the prelude replaces.
    flushes : bool
        Subnormal numbers of single precision are zeros.
    fuses : bool
        Products and sums are fused where g++ can.
    """

    architecture: str = "compute_52"
    standard: str = "c++17"
    macros: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    flushes: bool = False
    fuses: bool = False

    @property
    def is_real(self) -> bool:
        """Return whether the target is machine code for a device, not PTX."""
        return self.architecture.startswith("sm_")

    def of_gxx(self) -> list[str]:
        """Return the options of g++."""
        number = "".join(filter(str.isdigit, self.architecture))
        options = [f"-std={self.standard}", f"-D__CUDA_ARCH__={number}0"]
        options += [f"-I{folder}" for folder in self.folders]
        options.append(f"-ffp-contract={'fast' if self.fuses else 'off'}")
        if self.fuses:
            # At -O1 nothing is fused without this option.
            options.append("-fexpensive-optimizations")
        if self.fuses and platform.machine() == "x86_64":
            options.append("-mfma")
        return options


def read(given: Sequence[str]) -> Options:
    """Read the options of a compilation.

    Raises
    ------
    Unknown
        The message has NVRTC's form.
    """
    options = Options()
    for name, value in _pairs(given):
        if name == "--gpu-architecture":
            options.architecture = value
        elif name == "--std":
            # The prelude needs C++17, which includes what older kernels use.
            if value not in _STANDARDS:
                raise Unknown(f"nvrtc: error: invalid value for --std: {value}")
            options.standard = max(value, "c++17", key=_STANDARDS.index)
        elif name == "--define-macro":
            macro, equals, text = value.partition("=")
            options.macros.append(f"#define {macro} {text if equals else 1}")
        elif name == "--undefine-macro":
            options.macros.append(f"#undef {value}")
        elif name == "--include-path":
            if not _is_of_cuda(Path(value)):
                options.folders.append(Path(value))
        elif name == "--ftz":
            options.flushes = _flag(name, value)
        elif name == "--fmad":
            options.fuses = _flag(name, value)
            if options.fuses and not _can_fuse():
                raise Unknown("emulated: --fmad=true needs a processor with fused products")
        elif name in ("--prec-div", "--prec-sqrt"):
            if not _flag(name, value):
                raise Unknown(f"emulated: {name}=false is not emulated")
        elif name not in _WITHOUT_EFFECT:
            raise Unknown(f"nvrtc: error: unrecognized option {name} found, or not emulated")
    return options


def _pairs(given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield names, each in its long form, and values."""
    rest = iter(given)
    for option in rest:
        if option[:2] in ("-D", "-U", "-I") and len(option) > 2:
            yield _SHORT[option[:2]], option[2:]
            continue
        name, equals, value = option.partition("=")
        name = _SHORT.get(name, name)
        if not equals and name in ("--define-macro", "--undefine-macro", "--include-path"):
            value = next(rest, "")
        yield name, value


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise Unknown(f"nvrtc: error: invalid value for {name}: {value}")
    return value == "true"


@cache
def _is_of_cuda(folder: Path) -> bool:
    """Return whether a folder has CUDA's own headers, or the CCCL of CuPy."""
    return (folder / "cuda_runtime.h").exists() or "_cccl" in folder.parts


@cache
def _can_fuse() -> bool:
    if platform.machine() != "x86_64":
        return True
    flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0]
    return "fma" in flags.split()
