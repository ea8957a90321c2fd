"""Matrices of gradients as products of narrow ones, on a device.

Every addition has its place in a fixed order, so that all ranks get equal bits from equal sums.
The rows of P and Q are made orthonormal in float64, by ``rank + 1`` launches of all matrices, and
one more for Q.  The products are made tile by tile in float32: one launch multiplies, and another
adds the tiles.

The matrix, of rows times columns elements, is what takes time.  The launches of a sum read and
write 28 bytes of each element, if residuals are kept: 12 in ``project``, 4 in ``project_back`` and
12 in ``multiply``.  Tiles add ``rank / 64 + rank / 512`` times 8 bytes for each element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ncclkv.kernels.device import kernel_args
from ncclkv.kernels.device.copies import DeviceArray, plan_copies
from ncclkv.kernels.device.kernel_args import (
    DIRECTION_ELEMENTS,
    FACTOR_PIECES,
    TILE_COLUMNS,
    TILE_ROWS,
    PlannedLaunch,
)
from ncclkv.kernels.device.launch import Launch
from ncclkv.kernels.device.sources import (
    ADD_TILES,
    COPY,
    MULTIPLY,
    ORTHONORMALISE,
    PROJECT,
    PROJECT_BACK,
    KernelSource,
)
from ncclkv.kernels.host.chunks import ranges

Shape = tuple[int, int, int]
"""The rank of a matrix's product, and the rows and columns of the matrix."""


class Factors(Protocol):
    """The arrays of a matrix, as `ncclkv.compress.factoring.Factors`."""

    @property
    def matrix(self) -> DeviceArray: ...

    @property
    def residual(self) -> DeviceArray | None: ...

    @property
    def start(self) -> DeviceArray: ...

    @property
    def spare(self) -> DeviceArray: ...

    @property
    def p(self) -> DeviceArray: ...

    @property
    def direction(self) -> DeviceArray: ...

    @property
    def q(self) -> DeviceArray: ...


class Factoring:
    """The launches of the matrices of a sum; it keeps their arrays alive.

    Parameters
    ----------
    launch : callable
    factors, senders, average, scratch
        As of `ncclkv.compress.coding.Coding.factoring`.
    """

    def __init__(
        self,
        launch: Launch,
        factors: Sequence[Factors],
        senders: int,
        average: bool,
        scratch: DeviceArray,
    ) -> None:
        self._kept = factors, scratch
        self._first: list[Callable[[int], None]] = []
        self._second: list[Callable[[int], None]] = []
        self._last: list[Callable[[int], None]] = []
        for pieces in ranges(len(factors), FACTOR_PIECES):
            some = factors[pieces]
            starts = [each.start for each in some]
            spares = [each.spare for each in some]
            sums = [each.p for each in some]
            directions = [each.direction for each in some]
            self._first += [
                _Directions(launch, starts, spares, starts, scratch),
                _Projection(launch, PROJECT, some, starts, sums, scratch),
            ]
            self._second += [
                _Directions(launch, sums, None, directions, scratch),
                _Projection(
                    launch, PROJECT_BACK, some, directions, [each.q for each in some], scratch
                ),
            ]
            self._last.append(_Products(launch, some, senders, average))
        self._last.append(_Copies(launch, factors))

    def project(self, skip: DeviceArray | None) -> None:
        """Add residuals, make each Q orthonormal, and set each P."""
        _run(self._first, skip)

    def project_back(self, skip: DeviceArray | None) -> None:
        """Make the sum of each P orthonormal, and set each Q by it."""
        _run(self._second, skip)

    def finish(self, skip: DeviceArray | None) -> None:
        """Set matrices to products and residuals to the rest, and keep the sum of each Q."""
        _run(self._last, skip)


def _run(parts: Sequence[Callable[[int], None]], skip: DeviceArray | None) -> None:
    """Make launches one after another, with the address of a flag or 0."""
    flag = 0 if skip is None else skip.data.ptr
    for part in parts:
        part(flag)


def scratch_doubles(shapes: Sequence[Shape]) -> int:
    """Return the numbers of float64 that launches of some matrices need, or of some of them.

    Launches follow each other on a stream, so all kinds of them share this memory.

    Examples
    --------
    >>> scratch_doubles([(1, 100, 5)])
    103
    """
    needed = np.zeros(4, np.int64)
    for rank, rows, columns in shapes:
        needed += (
            _direction_doubles(rank, rows),
            _direction_doubles(rank, columns),
            -(-rank * rows * -(-columns // TILE_COLUMNS) // 2),
            -(-rank * columns * -(-rows // TILE_ROWS) // 2),
        )
    return int(needed.max())


def _direction_doubles(rank: int, length: int) -> int:
    """Return the numbers of float64 of rows that become orthonormal, and of their blocks."""
    return rank * (length + 3 * -(-length // DIRECTION_ELEMENTS))


class _Directions:
    """The launches that make the rows of arrays orthonormal.

    Parameters
    ----------
    launch : callable
    sources, outs : sequence of array of float32, shape (k, n)
    spares : sequence of array, or None
        Their rows replace rows of the sources that are 0, or not finite.
    scratch : array
    """

    def __init__(
        self,
        launch: Launch,
        sources: Sequence[DeviceArray],
        spares: Sequence[DeviceArray] | None,
        outs: Sequence[DeviceArray],
        scratch: DeviceArray,
    ) -> None:
        self._launch = launch
        ranks, lengths = np.array([each.shape for each in sources], np.int64).T
        (planned,) = kernel_args.plan_launches(
            kernel_args.DIRECTIONS, lengths, DIRECTION_ELEMENTS, FACTOR_PIECES
        )
        self._blocks, argument, _ = planned
        count = argument["count"]
        needed = [*map(_direction_doubles, ranks.tolist(), lengths.tolist())]
        work = np.cumsum(needed) - needed
        argument["source"][:count] = _addresses(sources)
        argument["spare"][:count] = 0 if spares is None else _addresses(spares)
        argument["out"][:count] = _addresses(outs)
        argument["length"][:count] = lengths
        argument["rank"][:count] = ranks
        argument["work"][:count] = work
        argument["partial"][:count] = work + ranks * lengths
        argument["scratch"] = scratch.data.ptr
        self._argument = argument
        # The first step looks for rows that are to be replaced.
        self._steps = range(0 if spares is not None else 1, int(ranks.max()) + 2)

    def __call__(self, skip: int) -> None:
        self._argument["skip"] = skip
        for step in self._steps:
            self._argument["step"] = step
            self._launch(ORTHONORMALISE, self._blocks, self._argument)


class _Projection:
    """The launches that multiply matrices by narrow ones.

    Parameters
    ----------
    launch : callable
    kernel : KernelSource
        ``project``, or ``project_back``.
    factors : sequence of Factors
    narrow, outs : sequence of array of float32
        The other factors, and the products.
    scratch : array
    """

    def __init__(
        self,
        launch: Launch,
        kernel: KernelSource,
        factors: Sequence[Factors],
        narrow: Sequence[DeviceArray],
        outs: Sequence[DeviceArray],
        scratch: DeviceArray,
    ) -> None:
        self._launch, self._kernel = launch, kernel
        self._tiles = _plan_tiles(kernel_args.TILES, factors)
        argument, count = self._tiles.argument, len(factors)
        sizes = np.array([out.size for out in outs], np.int64)
        added = [_tiles(each)[kernel is PROJECT] for each in factors]
        # Each a whole number of float64, as `scratch_doubles` counts them.
        needed = -(-sizes * added // 2) * 2
        partial = np.cumsum(needed) - needed
        argument["narrow"][:count] = _addresses(narrow)
        (self._sums,) = kernel_args.plan_launches(
            kernel_args.TILE_SUMS, sizes, kernel_args.ADDED_TOGETHER, FACTOR_PIECES
        )
        folds = self._sums.argument
        folds["out"][:count] = _addresses(outs)
        folds["size"][:count] = sizes
        folds["tiles"][:count] = added
        for each in argument, folds:
            each["partial"][:count] = partial
            each["scratch"] = scratch.data.ptr

    def __call__(self, skip: int) -> None:
        for kernel, (blocks, argument, _) in (self._kernel, self._tiles), (ADD_TILES, self._sums):
            argument["skip"] = skip
            self._launch(kernel, blocks, argument)


class _Products:
    """The launch that sets matrices to products, and residuals to the rest.

    Parameters
    ----------
    launch : callable
    factors, senders, average
        As of `Factoring`.
    """

    def __init__(
        self, launch: Launch, factors: Sequence[Factors], senders: int, average: bool
    ) -> None:
        self._launch = launch
        self._planned = _plan_tiles(kernel_args.PRODUCTS, factors)
        argument, count = self._planned.argument, len(factors)
        argument["left"][:count] = _addresses([each.direction for each in factors])
        argument["right"][:count] = _addresses([each.q for each in factors])
        argument["senders"], argument["average"] = senders, average

    def __call__(self, skip: int) -> None:
        self._planned.argument["skip"] = skip
        self._launch(MULTIPLY, self._planned.blocks, self._planned.argument)


class _Copies:
    """The launches that keep the sum of each Q for the next sum.

    Parameters
    ----------
    launch : callable
    factors : sequence of Factors
    """

    def __init__(self, launch: Launch, factors: Sequence[Factors]) -> None:
        self._launch = launch
        sources, targets = (
            np.array(_addresses(arrays), np.uint64)
            for arrays in ([each.q for each in factors], [each.start for each in factors])
        )
        nbytes = np.array([each.q.nbytes for each in factors], np.int64)
        self._planned = plan_copies(sources, targets, nbytes)

    def __call__(self, skip: int) -> None:
        for blocks, argument, _ in self._planned:
            argument["skip"] = skip
            self._launch(COPY, blocks, argument)


def _plan_tiles(layout: np.dtype[Any], factors: Sequence[Factors]) -> PlannedLaunch:
    """Plan a launch with a block for each tile, and fill in the matrices and their shapes."""
    tiles: NDArray[np.int64] = np.array([np.prod(_tiles(each)) for each in factors], np.int64)
    (planned,) = kernel_args.plan_launches(layout, tiles, 1, FACTOR_PIECES)
    argument, count = planned.argument, len(factors)
    argument["matrix"][:count] = _addresses([each.matrix for each in factors])
    argument["residual"][:count] = [
        0 if each.residual is None else each.residual.data.ptr for each in factors
    ]
    rows, columns = zip(*(each.matrix.shape for each in factors), strict=True)
    argument["rows"][:count], argument["columns"][:count] = rows, columns
    argument["rank"][:count] = [len(each.p) for each in factors]
    return planned


def _tiles(factors: Factors) -> tuple[int, int]:
    """Return the tiles of a matrix one above another, and side by side."""
    rows, columns = factors.matrix.shape
    return -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)


def _addresses(arrays: Sequence[DeviceArray]) -> list[int]:
    """Return the addresses of arrays."""
    return [each.data.ptr for each in arrays]
