"""Arguments that no verb accepts, and some that are valid; each call makes them anew."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

SHAPE = (2, 3)
KEYS = ("a", "b")
"""Keys of the stores under test: float64, of `SHAPE`."""


@dataclass(frozen=True)
class Malformed:
    """An argument to pass; `make` makes it, because some can be used only once."""

    name: str
    make: Callable[[], Any]

    def __repr__(self) -> str:
        return self.name


class Raises:
    """An object whose every attribute and method raises an exception of its own."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise ValueError("no array")

    def __len__(self) -> int:
        raise ValueError("no length")

    def __iter__(self) -> Any:
        raise ValueError("no iteration")

    def __repr__(self) -> str:
        return "<raises>"


class Interface:
    """An object that claims to be an array without being one."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": SHAPE, "typestr": "<f8", "data": None, "version": 3}


class NoTensor:
    """An object with a DLPack that fails."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("no")

    def __dlpack_device__(self) -> Any:
        return (1, 0)


class Text(str):
    """A subclass of str."""


class Number(enum.IntEnum):
    """A subclass of int."""

    ONE = 1


class Array(np.ndarray):
    """A subclass of ndarray."""


def good() -> Any:
    return np.ones(SHAPE)


def read_only() -> Any:
    array = good()
    array.flags.writeable = False
    return array


def unaligned() -> Any:
    return np.zeros(6 * 8 + 1, np.uint8)[1:].view(np.float64).reshape(SHAPE)


def itself() -> Any:
    array: list[Any] = []
    array.append(array)
    return array


def deep(depth: int = 200) -> Any:
    inner: Any = good()
    for _ in range(depth):
        inner = [inner]
    return inner


def holds_itself() -> Any:
    array = np.empty(1, object)
    array[0] = array
    return array


def _named(**makes: Callable[[], Any]) -> list[Malformed]:
    return [Malformed(name, make) for name, make in makes.items()]


SCALARS = [
    Malformed(repr(value), lambda value=value: value)  # type: ignore[misc]
    for value in (
        *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30),
        *(0.0, 0.5, -1.0, float("nan"), float("inf"), 1e308, 1j),
        *("", "a", "b", "absent", "sum", "ä" * 300, "\0", "\udcff", b"a", b""),
        *(np.int64(1), np.uint64(2**63), np.int8(-1), np.float32(1), np.float64("nan")),
        *(np.bool_(True), np.str_("a"), np.bytes_(b"a"), np.datetime64("2020"), np.complex64(1j)),
        *(Number.ONE, Text("a"), Ellipsis, NotImplemented, int, np.ndarray, np.float64),
        *(decimal.Decimal(1), fractions.Fraction(1, 2), datetime.date(2020, 1, 1), slice(3)),
    )
]

CONTAINERS = _named(
    an_empty_list=list,
    an_empty_tuple=tuple,
    an_empty_dict=dict,
    a_set=lambda: {"a", "b"},
    a_frozenset=lambda: frozenset("ab"),
    a_dict=lambda: {"a": good()},
    an_ordered_dict=lambda: OrderedDict(a=good()),
    a_deque=lambda: deque([good()]),
    a_generator=lambda: (key for key in KEYS),
    an_iterator=lambda: iter([good(), good()]),
    a_range=lambda: range(2),
    keys=lambda: list(KEYS),
    keys_in_a_tuple=lambda: KEYS,
    keys_turned_round=lambda: list(KEYS[::-1]),
    one_key_twice=lambda: ["a", "a"],
    a_key_and_none=lambda: ["a", None],
    keys_of_two_kinds=lambda: ["a", 1],
    a_key_in_lists=lambda: [["a"], ["b"]],
    nones=lambda: [None, None],
    numbers=lambda: [1.0, 2.0],
    itself=itself,
    deep=deep,
    a_bytearray=lambda: bytearray(b"a"),
    a_memoryview=lambda: memoryview(b"abcdef"),
)

ARRAYS = _named(
    good=good,
    an_array_in_a_list=lambda: [good()],
    two_arrays=lambda: [good(), good()],
    two_lists=lambda: [[good()], [good(), good()]],
    an_array_and_none=lambda: [good(), None],
    an_array_and_a_list_of_none=lambda: [good(), []],
    nested=lambda: [[[good()]]],
    a_stack=lambda: np.ones((2, *SHAPE)),
    strided=lambda: np.ones((4, 6))[::2, ::2],
    backwards=lambda: np.ones(SHAPE)[::-1, ::-1],
    fortran=lambda: np.asfortranarray(good()),
    broadcast=lambda: np.broadcast_to(1.0, SHAPE),
    read_only=read_only,
    unaligned=unaligned,
    other_ends=lambda: good().astype(">f8"),
    float16=lambda: good().astype(np.float16),
    float32=lambda: good().astype(np.float32),
    longdouble=lambda: good().astype(np.longdouble),
    int64=lambda: good().astype(np.int64),
    bools=lambda: good().astype(bool),
    complexes=lambda: good().astype(complex),
    objects=lambda: good().astype(object),
    nones_in_an_array=lambda: np.full(SHAPE, None),
    texts=lambda: np.full(SHAPE, "a"),
    bytes_in_an_array=lambda: np.full(SHAPE, b"a"),
    dates=lambda: np.zeros(SHAPE, "datetime64[s]"),
    spans=lambda: np.zeros(SHAPE, "timedelta64[s]"),
    records=lambda: np.zeros(SHAPE, [("x", float), ("y", int)]),
    voids=lambda: np.zeros(SHAPE, "V8"),
    not_a_number=lambda: np.full(SHAPE, np.nan),
    no_dimensions=lambda: np.array(1.0),
    empty=lambda: np.zeros((0, 3)),
    flat=lambda: np.ones(6),
    turned=lambda: np.ones((3, 2)),
    longer=lambda: np.ones((2, 4)),
    masked=lambda: np.ma.masked_array(good(), mask=good() > 0),
    of_a_class_of_its_own=lambda: good().view(Array),
    holds_itself=holds_itself,
)

OBJECTS = _named(
    an_object=object,
    raises=Raises,
    interface=Interface,
    no_tensor=NoTensor,
    a_function=lambda: lambda key, grad, stored: None,
    a_function_of_nothing=lambda: lambda: None,
    a_builtin=lambda: len,
    an_exception=lambda: ValueError("a value"),
    a_module=lambda: np,
)

JUNK = [*SCALARS, *CONTAINERS, *ARRAYS, *OBJECTS]
