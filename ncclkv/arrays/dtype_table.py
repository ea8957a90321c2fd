"""One table of the dtypes that stores hold, from which all other tables of dtypes are made.

A row says what each part of the package must know about a dtype: NumPy's kind, the arithmetic, and
the forms in NCCL, in CUDA and in checkpoints.  A test adds a row and finds it at every user.
"""

from __future__ import annotations

from typing import NamedTuple


class DTypeInfo(NamedTuple):
    """A dtype that stores can hold.

    Attributes
    ----------
    name : str
        NumPy's name; of a dtype of ``ml_dtypes``, its name there.
    kind : str
        NumPy's kind: ``b``, ``i``, ``u``, ``f`` or ``c``; of a float of ``ml_dtypes`` also ``V``.
    itemsize : int
        Bytes of an element.
    cuda : str
        Name of the type in CUDA.
    nccl : int or None
        NCCL's constant (``nccl.h``, ncclDataType_t); None if NCCL lacks the dtype.
    moved_as : tuple of (str, int), optional
        For a dtype that NCCL lacks: a dtype with the same bytes, and its elements for each element.
    working : str
        Dtype of arithmetic; empty if this is the dtype itself.
    averaged_in : str
        Dtype in which averages are summed, if the dtype itself may be too narrow for their sum.
    stored_as : tuple of (str, int), optional
        For a dtype that safetensors lacks: the dtype of its parts, and the parts of an element.
    exponent : int or None
        Mask of the exponent's bits of a real float: NaN and infinity have all of them.
    cuda_header : str
        Header that declares the type in CUDA; empty if none does.
    package : str
        Package that has the dtype, ``ml_dtypes``; empty if NumPy has it.
    """

    name: str
    kind: str
    itemsize: int
    cuda: str
    nccl: int | None
    moved_as: tuple[str, int] | None = None
    working: str = ""
    averaged_in: str = ""
    stored_as: tuple[str, int] | None = None
    exponent: int | None = None
    cuda_header: str = ""
    package: str = ""

    @property
    def is_low_precision(self) -> bool:
        """True if arithmetic is in a wider dtype."""
        return bool(self.working)


TABLE = (
    DTypeInfo("bool", "b", 1, "bool", None, ("uint8", 1)),
    DTypeInfo("int8", "i", 1, "signed char", 0, averaged_in="int64"),
    DTypeInfo("int16", "i", 2, "short", None, ("uint8", 2), averaged_in="int64"),
    DTypeInfo("int32", "i", 4, "int", 2, averaged_in="int64"),
    DTypeInfo("int64", "i", 8, "long long", 4, averaged_in="int64"),
    DTypeInfo("uint8", "u", 1, "unsigned char", 1, averaged_in="uint64"),
    DTypeInfo("uint16", "u", 2, "unsigned short", None, ("uint8", 2), averaged_in="uint64"),
    DTypeInfo("uint32", "u", 4, "unsigned", 3, averaged_in="uint64"),
    DTypeInfo("uint64", "u", 8, "unsigned long long", 5, averaged_in="uint64"),
    DTypeInfo(
        "float16",
        "f",
        2,
        "__half",
        6,
        working="float32",
        exponent=0x7C00,
        cuda_header="<cuda_fp16.h>",
    ),
    DTypeInfo(
        "bfloat16",
        "V",
        2,
        "__nv_bfloat16",
        9,
        working="float32",
        stored_as=("uint16", 1),
        exponent=0x7F80,
        cuda_header="<cuda_bf16.h>",
        package="ml_dtypes",
    ),
    DTypeInfo("float32", "f", 4, "float", 7, exponent=0x7F800000),
    DTypeInfo("float64", "f", 8, "double", 8, exponent=0x7FF0000000000000),
    DTypeInfo(
        "complex64", "c", 8, "Complex<float>", None, ("float32", 2), stored_as=("float32", 2)
    ),
    DTypeInfo(
        "complex128", "c", 16, "Complex<double>", None, ("float64", 2), stored_as=("float64", 2)
    ),
)
"""All dtypes that stores hold; ranks name a dtype to each other by its index here."""

BY_NAME = {row.name: row for row in TABLE}
"""Rows by name."""
