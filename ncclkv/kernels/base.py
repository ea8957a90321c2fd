"""`Kernels`: the interface that the kernels of every device share.

Arrays are one-dimensional views of bucket memory, if not described otherwise.  A kernel allocates
no memory that outlives the call, and checks nothing: callers have checked shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = Sequence[Array]


@dataclass(frozen=True, eq=False)
class Segments:
    """Consecutive ranges of a bucket, each with its own row of scalars.

    Attributes
    ----------
    bounds : ndarray of int64, shape (n + 1,)
        Segment i is elements ``[bounds[i], bounds[i + 1])``; the array is never changed.
    """

    bounds: NDArray[np.int64]


class Measured(NamedTuple):
    """The sums of squares that an update reads when it runs, in the kernels' memory.

    Attributes
    ----------
    sums : array of float64, shape (segments, k), or None
        As `Kernels.measure` has made them for the segments.  They determine factors of the learning
        rates.
    total : array of float64, shape (2,), or None
        The sum of the squares of all gradients, and the bound of its root: larger gradients are
        scaled down, together.
    """

    sums: Array | None = None
    total: Array | None = None


class Kernels(Protocol):
    """Operations on the memory that holds a store's values.

    Attributes
    ----------
    coding : Coding or None
        The arithmetic of codecs (`ncclkv.compress.coding.Coding`) in this memory; None stands for
        the codecs' own, on the host.
    """

    @property
    def coding(self) -> Any: ...

    def value(self, x: Any, what: str) -> Array:
        """View a user's array for reading, or raise `UsageError`; `what` begins the message."""

    def out(self, x: Any, what: str) -> Array:
        """View a user's array for writing, or raise `UsageError`."""

    def not_in_c(self, dtype: np.dtype[Any], op: str) -> str:
        """Return why sums of `dtype` by `op` are not made in C; empty if they are, or on a GPU."""

    def zeros(self, count: int, dtype: np.dtype[Any]) -> Array:
        """Return a new flat array of zeros."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a new array with undefined elements."""

    def left(self) -> int | None:
        """Return the count of bytes left for new arrays; None if unknown."""

    def fill(self, array: Array, value: float) -> None:
        """Set every element of `array` to a scalar."""

    def copy(self, array: Array) -> Array:
        """Return a contiguous copy of `array` in the same kind of memory."""

    def pack(self, value: Array, slot: Array) -> None:
        """Copy `value` (any shape and strides) into the flat `slot` of the same size and dtype."""

    def unpack(self, slot: Array, out: Array) -> None:
        """Copy `slot` into `out` (any shape and strides) of the same size, casting to its dtype.

        `slot` is flat, or the value of a key without a bucket, in C order.
        """

    def pack_all(self, values: Arrays, slots: Arrays, table: Any = None) -> Any:
        """Pack each value into its slot.

        `table` is the result of an earlier call for the same slots, with values of the same shapes
        and dtypes.  The call returns it, or a new table.
        """

    def unpack_all(self, slots: Arrays, outs: Arrays, table: Any = None) -> Any:
        """Unpack each slot into its out; `table` as for `pack_all`."""

    def combine(self, values: Arrays, slot: Array, op: str) -> None:
        """Reduce one rank's `values` of a key (any strides, one shape) into the flat `slot`.

        ``avg`` adds here: its division is over ranks.  16-bit floats are combined in float32 and
        rounded once.  No value may share memory with `slot`.
        """

    def reduce(self, parts: Arrays, out: Array, op: str) -> None:
        """Reduce the ranks' `parts`, in their order, into `out`, which may be one of them.

        16-bit floats are combined in float32 and rounded once; ``avg`` divides by ``len(parts)``,
        integers toward zero, after a sum in 64 bits.
        """

    def divide(self, array: Array, count: int) -> None:
        """Divide the flat sum of `count` arrays by the count, in place; integers toward zero."""

    def find_nonfinite(self, array: Array, flag: Array) -> None:
        """Set ``flag[0]``, an int32, to 1 if an element of `array` is NaN or infinite.

        Otherwise leave the flag unchanged: one flag serves several arrays, and `fill` clears it.
        Integers and bools are finite.
        """

    def assign(self, total: Array, weights: Array, skip: Array) -> None:
        """Copy `total` into `weights`, of the same size and dtype, unless ``skip[0]`` is not 0.

        `skip` is an array of one int32 in the memory of both, read when the copy is made.
        """

    def update(
        self,
        program: str,
        weights: Array,
        gradients: Array,
        states: Arrays,
        scalars: Array,
        segments: Segments,
        skip: Array | None = None,
        master: Array | None = None,
        measured: Measured | None = None,
    ) -> None:
        """Update `weights` and `states` in place by one step of a program, segment by segment.

        Parameters
        ----------
        program : str
            A name in `ncclkv.kernels.programs.PROGRAMS`.
        weights, gradients : array, shape (n,)
            float16, bfloat16, float32 or float64, and of one dtype; gradients are left unchanged.
            16-bit weights are updated in float32 and rounded once.
        states : sequence of array, shape (n,)
            float32 for 16-bit weights, else of the weights' dtype.
        scalars : array of float64, shape (segments, k)
            One row for each segment, in the kernels' memory and read when the update runs: a replay
            of a captured update reads the present numbers.
        segments : Segments
            Ranges to update; elements outside of them are left unchanged.
        skip : array of int32, shape (1,), optional
            As for `assign`: if ``skip[0]`` is not 0, nothing is changed.
        master : array of float32, shape (n,), optional
            Weights in float32, for 16-bit `weights`: they are updated, and `weights` receive their
            rounding.
        measured : Measured, optional
        """

    def measure(
        self,
        program: str,
        weights: Array,
        gradients: Array,
        states: Arrays,
        scalars: Array,
        segments: Segments,
        sums: Array,
        scratch: Array,
        skip: Array | None = None,
        master: Array | None = None,
        measured: Measured | None = None,
    ) -> None:
        """Add a program's sums of squares to `sums`, segment by segment; update its states.

        The additions are made in float64 and in one order: on every device the same call makes the
        same bits.  Parameters are those of `update`, and:

        Parameters
        ----------
        sums : array of float64, shape (segments, k)
            In C order.
        scratch : array of float64
            Memory of `measure_scratch`, for no other call at the same time.
        """

    def measure_scratch(self, count: int, segments: int) -> Array:
        """Return scratch memory for sums over `count` numbers in `segments` segments or less."""

    def checksums(self, arrays: Arrays) -> Array:
        """Return an order-dependent checksum of each array (any shape, strides and memory).

        The checksums, shape (len(arrays),) and uint64, are in the kernels' memory.  They are equal
        on every device: those of `ncclkv.kernels.host.checksum`.
        """
