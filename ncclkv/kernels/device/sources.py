"""List of all kernels, in every variant.

Launches take kernels from this list, and so does the test that compiles all kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ncclkv.kernels import programs
from ncclkv.kernels.device import kernel_args
from ncclkv.kernels.host import checksum
from ncclkv.kernels.host.measure import BLOCK, LANES

FOLDER = Path(__file__).parent / "cuda"
"""Directory of the sources."""

_LIMITS = {
    "MAX_PIECES": str(kernel_args.PIECES),
    "MAX_PARTS": str(kernel_args.PARTS),
    "MAX_STATES": str(kernel_args.MAX_STATES),
}
"""Macros of all kernels: lengths of the arrays in their arguments."""


@dataclass(frozen=True, eq=False)
class KernelSource:
    """A kernel in one of its variants.

    Attributes
    ----------
    name : str
        Name of the kernel.
    variant : str
        Description; empty if the kernel has one variant.
    argument : numpy.dtype
        Layout of the kernel's argument.
    macros : dict of str to str
        More macros for the compiler than `_LIMITS`.
    file : str
        Name of the source without ``.cu``; by default `name`.
    """

    name: str
    variant: str
    argument: np.dtype[Any]
    macros: dict[str, str]
    file: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.variant}".strip()

    @property
    def source(self) -> str:
        """The source text."""
        return (FOLDER / f"{self.file or self.name}.cu").read_text()

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler's options, equal for all devices and installations.

        Products and sums are not fused: each rounds as in NumPy.
        """
        macros = {**_LIMITS, **self.macros, "ARGUMENT_BYTES": str(self.argument.itemsize)}
        defines = tuple(f"-D{name}={value}" for name, value in macros.items())
        return ("--std=c++17", "--fmad=false", *defines)


def headers() -> dict[bytes, bytes]:
    """Return the names and texts of the headers, as NVRTC takes them."""
    paths = (*sorted(FOLDER.glob("*.cuh")), *sorted(programs.FOLDER.glob("*.h")))
    return {path.name.encode(): path.read_bytes() for path in paths}


def _plain(c_type: str) -> dict[str, str]:
    """Return the macros of a type whose arithmetic is in the type itself."""
    return {"ELEMENT": c_type, "WORKING": c_type}


_FLOATS = {
    "float16": {"ELEMENT": "__half", "WORKING": "float", "HEADER": "<cuda_fp16.h>"},
    "bfloat16": {"ELEMENT": "__nv_bfloat16", "WORKING": "float", "HEADER": "<cuda_bf16.h>"},
    "float32": _plain("float"),
    "float64": _plain("double"),
}
_COMPLEX = {"complex64": _plain("Complex<float>"), "complex128": _plain("Complex<double>")}
_ELEMENTS = {
    "bool": _plain("bool"),
    "int8": _plain("signed char"),
    "int16": _plain("short"),
    "int32": _plain("int"),
    "int64": _plain("long long"),
    "uint8": _plain("unsigned char"),
    "uint16": _plain("unsigned short"),
    "uint32": _plain("unsigned"),
    "uint64": _plain("unsigned long long"),
    **_FLOATS,
    **_COMPLEX,
}

_STEP = {"sum": "add", "avg": "add", "prod": "multiply", "max": "larger", "min": "smaller"}
_WIDEST = {
    dtype: "unsigned long long" if dtype[0] == "u" else "long long"
    for dtype in _ELEMENTS
    if "int" in dtype
}
"""Types of the sums of averages of integers."""

COPY = KernelSource("copy", "", kernel_args.COPIES, {"PER_BLOCK": str(kernel_args.COPY_BYTES)})
"""Kernel that copies many arrays."""

COMBINE = {
    (dtype, op): KernelSource(
        "combine",
        f"{op} of {dtype}",
        kernel_args.COMBINATION,
        {
            "STEP": step,
            "TOGETHER": str(kernel_args.COMBINED_TOGETHER),
            **macros,
            **({"WORKING": _WIDEST[dtype]} if op == "avg" else {}),
        },
    )
    for dtype, macros in _ELEMENTS.items()
    for op, step in _STEP.items()
    if (dtype in _WIDEST if op == "avg" else dtype not in _COMPLEX or op == "sum")
}
"""Kernels that combine arrays of one shape, by dtype and op.

Complex numbers are only added: they have no order, and NCCL does not multiply them.  ``avg`` of
other dtypes than integers is ``sum`` with a divisor.
"""

UPDATE = {
    (program.name, states, dtype): KernelSource(
        program.name,
        f"of {dtype}" + (f" with {states} of states" if states else ""),
        kernel_args.UPDATES,
        {
            "PER_BLOCK": str(kernel_args.UPDATED_ELEMENTS),
            "STATES": str(states),
            "PROGRAM": program.name,
            "ARITHMETIC": f"<{program.name}.h>",
            **macros,
        },
        file="update",
    )
    for program in programs.PROGRAMS.values()
    for states in program.states
    for dtype, macros in _FLOATS.items()
}
"""Kernels of updates, by program, number of states and dtype of the weights."""

_BLOCKS = {"PER_BLOCK": str(kernel_args.MEASURED_ELEMENTS), "BLOCK": str(BLOCK)}

NORMS = {
    (program.name, states, dtype): KernelSource(
        "norms",
        f"of {program.name} of {dtype}" + (f" with {states} of states" if states else ""),
        kernel_args.MEASURES,
        {
            "LANES": str(LANES),
            "STATES": str(states),
            "ARITHMETIC": f"<{program.name}.h>",
            **_BLOCKS,
            **macros,
        },
    )
    for program in programs.PROGRAMS.values()
    if program.norms is not None
    for states in program.states
    for dtype, macros in _FLOATS.items()
}
"""Kernels of sums of squares, by program, number of states and dtype of the weights."""

FOLD = KernelSource("fold", "", kernel_args.FOLDS, _BLOCKS)
"""Kernel that adds the sums of blocks."""

CHECKSUM = KernelSource(
    "checksum",
    "",
    kernel_args.SUMS,
    {
        "PER_BLOCK": str(kernel_args.SUMMED_BYTES),
        "THREADS": str(kernel_args.THREADS),
        "STEP": f"{checksum.STEP}ull",
        "FIRST": f"{checksum.FIRST}ull",
        "SECOND": f"{checksum.SECOND}ull",
        "FACTOR": f"{checksum.FACTOR}ull",
    },
)
"""Kernel that makes checksums of many arrays."""

_EXPONENT = {
    "float16": ("unsigned short", "0x7c00"),
    "bfloat16": ("unsigned short", "0x7f80"),
    "float32": ("unsigned", "0x7f800000"),
    "float64": ("unsigned long long", "0x7ff0000000000000"),
}

NONFINITE = {
    dtype: KernelSource(
        "nonfinite", f"of {dtype}", kernel_args.SEARCH, {"WORD": word, "EXPONENT": exponent}
    )
    for dtype, (word, exponent) in _EXPONENT.items()
}
"""Kernels that search for NaN and infinity, by dtype; complex numbers are pairs of real numbers."""

SOURCES = (
    COPY,
    *COMBINE.values(),
    *UPDATE.values(),
    *NORMS.values(),
    FOLD,
    *NONFINITE.values(),
    CHECKSUM,
)
"""All kernels."""
