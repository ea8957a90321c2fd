"""List of all kernels, in every variant.

Launches take kernels from this list, and so does the test that compiles all kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ncclkv.arrays.dtype_table import BY_NAME, TABLE, DTypeInfo
from ncclkv.kernels import programs
from ncclkv.kernels.device import kernel_args
from ncclkv.kernels.host import checksum
from ncclkv.kernels.host.low_rank import LEAST_SHARE
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


def _macros(row: DTypeInfo) -> dict[str, str]:
    """Return the macros of a dtype: its type, that of its arithmetic, and the type's header."""
    working = BY_NAME[row.working or row.name]
    header = {"HEADER": row.cuda_header} if row.cuda_header else {}
    return {"ELEMENT": row.cuda, "WORKING": working.cuda, **header}


_ELEMENTS = {row.name: _macros(row) for row in TABLE}
_FLOATS = {row.name: _ELEMENTS[row.name] for row in TABLE if row.exponent is not None}
_COMPLEX = {row.name for row in TABLE if row.kind == "c"}

_STEP = {"sum": "add", "avg": "add", "prod": "multiply", "max": "larger", "min": "smaller"}
_WIDEST = {row.name: BY_NAME[row.averaged_in].cuda for row in TABLE if row.averaged_in}
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

_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}

NONFINITE = {
    row.name: KernelSource(
        "nonfinite",
        f"of {row.name}",
        kernel_args.SEARCH,
        {"WORD": _WORDS[row.itemsize], "EXPONENT": f"{row.exponent:#x}"},
    )
    for row in TABLE
    if row.exponent is not None
}
"""Kernels that search for NaN and infinity, by dtype; complex numbers are pairs of real numbers."""

_HALVES = [row.name for row in TABLE if row.working]
_WIDE = ("float32", "float64")

NARROW = {
    (wide, name): KernelSource(
        "narrow",
        f"{wide} to {name}",
        kernel_args.ROUNDINGS,
        {
            "PER_BLOCK": str(kernel_args.ROUNDED_ELEMENTS),
            "GRADIENT": BY_NAME[wide].cuda,
            **_ELEMENTS[name],
        },
    )
    for wide in _WIDE
    for name in _HALVES
}
"""Kernels that round gradients to 16 bits, by the dtypes of the gradients and of the words."""

WIDEN = {
    (name, wide): KernelSource(
        "widen",
        f"{name} to {wide}",
        kernel_args.WIDENING,
        {"OUT": BY_NAME[wide].cuda, **_ELEMENTS[name]},
    )
    for name in _HALVES
    for wide in _WIDE
}
"""Kernels of the opposite of `NARROW`, by the dtypes of the words and of the numbers."""

CODES = {"1bit": (1, (0, 1)), "2bit": (2, (1, 1, 0, 2))}
"""The bits of a code, and the level of each code, by the codec."""


def _codes(name: str) -> dict[str, str]:
    """Return the macros of a codec."""
    bits, levels = CODES[name]
    packed = sum(level << 4 * code for code, level in enumerate(levels))
    return {"BITS": str(bits), "LEVELS": f"{packed:#x}"}


ENCODE = {
    name: KernelSource(
        "encode",
        name,
        kernel_args.ENCODINGS,
        {
            "PER_BLOCK": str(kernel_args.ENCODED_ELEMENTS),
            "THREADS": str(kernel_args.THREADS),
            "QUANTISE": f"quantise_{name}",
            **_codes(name),
        },
    )
    for name in CODES
}
"""Kernels that encode gradients, by codec."""

DECODE = {name: KernelSource("decode", name, kernel_args.DECODED, _codes(name)) for name in CODES}
"""Kernels that decode the sum of several senders, by codec."""

_WIDTHS = (2, 4, 8, 16)

PACK = {
    (name, width): KernelSource(
        "pack",
        f"{name} into {width} bits",
        kernel_args.PACKED,
        {"WIDTH": str(width), **_codes(name)},
    )
    for name in CODES
    for width in _WIDTHS
}
"""Kernels that count the codes of several senders, by codec and by bits of a count."""

UNPACK = {
    width: KernelSource("unpack", f"of {width} bits", kernel_args.UNPACKED, {"WIDTH": str(width)})
    for width in _WIDTHS
}
"""Kernels that decode packed counts, by their bits."""

_TAKES = {
    "PER_BLOCK": str(kernel_args.TAKEN_ELEMENTS),
    "THREADS": str(kernel_args.THREADS),
    "MAX_PIECES": str(kernel_args.TAKEN_PIECES),
}
_ONES = {20: 0x7FF, 10: 0x3FF, 0: 0x3FF}
"""Masks of the digits of a magnitude, by their lowest bits; the first digit is found first."""


def _top_digits(name: str) -> dict[int, KernelSource]:
    """Return the variants of a kernel that works on a digit, by the digit's lowest bit."""
    return {
        shift: KernelSource(
            name,
            f"of the digit from bit {shift} on",
            kernel_args.TAKES,
            {"ADDS": str(int(shift == 20)), "ONES": f"{ones:#x}", **_TAKES},
        )
        for shift, ones in _ONES.items()
    }


TOP_COUNT = _top_digits("top_count")
"""Kernels that count magnitudes by a digit; that of the first digit adds gradients before."""

TOP_DIGIT = _top_digits("top_digit")
"""Kernels that find a digit of the least magnitude that is sent."""

TOP_BLOCKS, TOP_BEFORE, TOP_TAKE = (
    KernelSource(name, "", kernel_args.TAKES, _TAKES)
    for name in ("top_blocks", "top_before", "top_take")
)
"""Kernels that count what each block sends, and all blocks before it; and that which sends it."""

TOP_ADD = KernelSource(
    "top_add", "", kernel_args.ADDS, {"PER_BLOCK": str(kernel_args.ADDED_ELEMENTS)}
)
"""Kernel that adds the largest gradients of a sender."""

_OF_MATRICES = {
    "THREADS": str(kernel_args.THREADS),
    "MAX_PIECES": str(kernel_args.FACTOR_PIECES),
}

ORTHONORMALISE = KernelSource(
    "orthonormalise",
    "",
    kernel_args.DIRECTIONS,
    {
        "PER_BLOCK": str(kernel_args.DIRECTION_ELEMENTS),
        "LEAST_SHARE": repr(LEAST_SHARE),
        **_OF_MATRICES,
    },
)
"""Kernel that makes rows orthonormal, one row in each launch."""

_TILES = {
    "TILE_ROWS": str(kernel_args.TILE_ROWS),
    "TILE_COLUMNS": str(kernel_args.TILE_COLUMNS),
    **_OF_MATRICES,
}

PROJECT, PROJECT_BACK = (
    KernelSource(name, "", kernel_args.TILES, _TILES) for name in ("project", "project_back")
)
"""Kernels that multiply each tile of a matrix by a part of Q or P."""

ADD_TILES = KernelSource(
    "add_tiles",
    "",
    kernel_args.TILE_SUMS,
    {"PER_BLOCK": str(kernel_args.ADDED_TOGETHER), **_OF_MATRICES},
)
"""Kernel that adds the products of tiles."""

MULTIPLY = KernelSource("multiply", "", kernel_args.PRODUCTS, _TILES)
"""Kernel that sets matrices to products of narrow ones."""

SOURCES = (
    COPY,
    *COMBINE.values(),
    *UPDATE.values(),
    *NORMS.values(),
    FOLD,
    *NONFINITE.values(),
    CHECKSUM,
    *NARROW.values(),
    *WIDEN.values(),
    *ENCODE.values(),
    *DECODE.values(),
    *PACK.values(),
    *UNPACK.values(),
    *TOP_COUNT.values(),
    *TOP_DIGIT.values(),
    TOP_BLOCKS,
    TOP_BEFORE,
    TOP_TAKE,
    TOP_ADD,
    ORTHONORMALISE,
    PROJECT,
    PROJECT_BACK,
    ADD_TILES,
    MULTIPLY,
)
"""All kernels."""
