"""Types of the arguments and results of a store's verbs, for annotations in a user's program.

Examples
--------
>>> from ncclkv.typing import ArrayLike, Key
>>> def scaled(key: Key, gradient: ArrayLike) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Array",
    "ArrayLike",
    "Arrays",
    "Key",
    "KeyLike",
    "KeyT",
    "Keys",
    "MissingPolicy",
    "NonfinitePolicy",
    "Number",
    "NumberT",
    "Op",
    "Placement",
    "SupportsDLPack",
    "SupportsGPU",
    "SupportsUpdate",
    "Updater",
    "ValueLike",
    "Values",
]


def __dir__() -> list[str]:
    """List the public names."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


Key: TypeAlias = int | str
"""Key returned by a store."""

KeyLike: TypeAlias = int | str | np.integer[Any]
"""Key passed to a verb."""

KeyT = TypeVar("KeyT", bound=KeyLike)

Keys: TypeAlias = list[KeyT] | tuple[KeyT, ...]
"""Several keys of one type; lists and tuples only, because str and bytes are sequences too."""


class SupportsDLPack(Protocol):
    """An array that offers DLPack, such as a torch tensor."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


class SupportsGPU(Protocol):
    """An array in a GPU's memory, such as Numba's."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


Array: TypeAlias = NDArray[Any]
"""Array returned by a store: NumPy's, or CuPy's from a store in a GPU's memory."""

ArrayLike: TypeAlias = NDArray[Any] | np.generic | SupportsDLPack | SupportsGPU
"""Array passed to a verb; no number, and no list, which means several arrays."""

Arrays: TypeAlias = Sequence[ArrayLike | Sequence[ArrayLike]]
"""Several arrays of one key; for a list of keys, an array or several arrays each."""

Number: TypeAlias = bool | int | float | complex
"""Python number, which stands for an array of shape ()."""

NumberT = TypeVar("NumberT", bool, int, float, complex)

ValueLike: TypeAlias = ArrayLike | Number
"""Value passed to a verb that reads values."""

Values: TypeAlias = Sequence[ValueLike | Sequence[ValueLike]]
"""Several values of one key; for a list of keys, a value or several values each."""

Op: TypeAlias = Literal["sum", "avg", "max", "min", "prod"]
"""Reductions of a key over ranks."""

Placement: TypeAlias = Literal["every_rank", "root", "sharded"]
"""Values of the option `update_on` of ``ncclkv.create``."""

MissingPolicy: TypeAlias = Literal["error", "zeros"]
"""Values of the option `missing` of ``ncclkv.create``."""

NonfinitePolicy: TypeAlias = Literal["ignore", "raise", "skip_step"]
"""Values of the option `nonfinite` of ``ncclkv.create``."""


class SupportsUpdate(Protocol):
    """An object whose ``update(key, input, stored)`` changes `stored` in place."""

    def update(self, key: Any, input: Any, stored: Any, /) -> object: ...


Updater: TypeAlias = Callable[[Any, Any, Any], object] | SupportsUpdate
"""Argument of ``set_updater``; it takes a key (int or str), the input and the stored array."""
