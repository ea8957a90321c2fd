"""The signature that the kernels of every device share.

Arrays are one-dimensional views of bucket memory unless said otherwise.  A kernel allocates
nothing that outlives it and checks nothing: shapes and dtypes were checked when the plan was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Segments(NamedTuple):
    """Ranges that follow one another, with factors of their own for two numbers of a step.

    Segment i is elements ``[offsets[i], offsets[i + 1])``.
    """

    offsets: tuple[int, ...]
    lr_mult: tuple[float, ...]
    wd_mult: tuple[float, ...]


class Kernels(Protocol):
    """What a store asks of the memory that its values are in."""

    def value(self, x: Any, what: str) -> Array:
        """View what a user passes to be read, or raise `UsageError`; `what` begins its message."""

    def out(self, x: Any, what: str) -> Array:
        """View what a user passes to be written, or raise `UsageError`."""

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Array:
        """A new flat array of zeros."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A new array whose elements may be anything."""

    def left(self) -> int | None:
        """Return the bytes that new arrays may still take; None where that is not known."""

    def fill(self, array: Array, value: float) -> None:
        """Make every element of `array` that number."""

    def copy(self, array: Array) -> Array:
        """A contiguous copy, in the same memory as `array`, that shares none of it."""

    def pack(self, value: Array, slot: Array) -> None:
        """Copy `value` (any shape and strides) into the flat `slot` of the same size and dtype."""

    def unpack(self, slot: Array, out: Array) -> None:
        """Copy the flat `slot` into `out` (any shape and strides), casting to its dtype."""

    def pack_all(self, values: Sequence[Array], slots: Sequence[Array], table: Any = None) -> Any:
        """Pack each value into its slot.

        `table` is what an earlier call for the same slots returned, and for values of the same
        shapes and dtypes; this one returns it, or a new one.
        """

    def unpack_all(self, slots: Sequence[Array], outs: Sequence[Array], table: Any = None) -> Any:
        """Unpack each slot into its out; `table` as for `pack_all`."""

    def combine(self, values: Sequence[Array], slot: Array, op: str) -> None:
        """Reduce one rank's `values` of a key (any strides, one shape) into the flat `slot`.

        ``avg`` adds here: its division is over ranks.  16-bit floats are combined in float32 and
        rounded once.  No value may share memory with `slot`.
        """

    def reduce(self, parts: Sequence[Array], out: Array, op: str) -> None:
        """Reduce the ranks' `parts`, in their order, into `out`, which may be one of them.

        16-bit floats are combined in float32 and rounded once; ``avg`` divides by ``len(parts)``
        (integers toward zero).
        """

    def find_nonfinite(self, array: Array, flag: Array) -> None:
        """Set ``flag[0]``, an int32, to 1 if a number of `array` is NaN or infinite.

        Else leave it as it is: a flag gathers what is found in several arrays, and is cleared by
        `fill`.  Integers and bools are finite.
        """

    def assign(self, total: Array, weights: Array, skip: Array) -> None:
        """Copy `total` into `weights`, of the same size and dtype, unless ``skip[0]`` is not 0.

        `skip` is an array of one int32 in the memory of both, read when the copy is made.
        """

    def sgd(
        self,
        weights: Array,
        gradients: Array,
        momenta: Array | None,
        *,
        learning_rate: float | Array,
        momentum: float,
        weight_decay: float,
        rescale: float,
        clip: float | None,
        segments: Segments | None = None,
        skip: Array | None = None,
    ) -> None:
        """One step of stochastic gradient descent on `weights` (and `momenta`) in place.

        Only `segments` are updated, if they are given, and with their factors.  A learning rate
        that is an array, of one float64 in the weights' memory, is read when the step is made; and
        so is `skip`, as in `assign`: unless it is 0, nothing is changed.
        """

    def checksums(self, arrays: Sequence[Array]) -> Array:
        """A sum of the bits of each array (any shape, strides and memory), with their order.

        The sums, shape (len(arrays),) and uint64, are in the kernels' memory and the same on every
        device: those of `ncclkv.kernels.host.checksum`.
        """
