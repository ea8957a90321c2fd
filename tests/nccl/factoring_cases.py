"""Cases of the kernels that make products of narrow matrices, against the host's arithmetic.

Rows are made orthonormal in float64, as on the host, and rounded once: they differ by a rounding of
float32.  An element of P or Q is compared with the sum in float64: its error is at most 2**-24 of
the sum of the magnitudes of its products, for each addition that a product goes through.  Products
and residuals have the bits of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ncclkv.compress.coding import HostCoding
from ncclkv.compress.factoring import Factoring, Factors
from ncclkv.compress.powersgd import PowerSGD
from ncclkv.kernels.device.kernel_args import (
    DIRECTION_ELEMENTS,
    FACTOR_PIECES,
    TILE_COLUMNS,
    TILE_ROWS,
)
from ncclkv.kernels.device.sources import (
    ADD_TILES,
    COPY,
    MULTIPLY,
    ORTHONORMALISE,
    PROJECT,
    PROJECT_BACK,
)
from tests.nccl.kernel_cases import Stage, same_bits

HOST = HostCoding()
ROUNDING = 2.0**-24
SHAPES = [
    (1, 1),
    (1, 7),
    (9, 1),
    (5, 3),
    (TILE_ROWS, TILE_COLUMNS),
    (TILE_ROWS + 1, TILE_COLUMNS + 1),
    (3 * TILE_ROWS - 1, 31),
    (3, 2 * TILE_COLUMNS + 77),
    (DIRECTION_ELEMENTS + 1, 6),
    (2, 2 * DIRECTION_ELEMENTS + 3),
]
PARTS = ("project", "project_back", "finish")


def additions(shape: tuple[int, int]) -> float:
    """Return a bound of the roundings of a product on its way to an element of P or Q."""
    rows, columns = shape
    return TILE_ROWS + 16 + rows / (8 * TILE_ROWS) + columns / (8 * TILE_COLUMNS)


class Matrices:
    """The arrays of some matrices in host memory, and copies in the memory of the kernels."""

    def __init__(
        self,
        stage: Stage,
        rng: np.random.Generator,
        shapes: Sequence[tuple[int, int]],
        rank: int,
        *,
        keeps: bool = True,
        senders: int = 1,
        average: bool = False,
    ) -> None:
        codec = PowerSGD(matrix_approximation_rank=rank)
        self.stage, self.rng, self.shapes = stage, rng, shapes
        self.host: list[Factors] = []
        for index, shape in enumerate(shapes):
            tall, wide = codec.narrow_shapes(shape)
            given = np.zeros(shape, np.float32)
            starts = codec.basis(index, shape), codec.basis(index, shape, 1)
            narrow = [np.full(each, 7, np.float32) for each in (tall, tall, wide)]
            residual = given.copy() if keeps else None
            self.host.append(Factors(given, residual, *starts, *narrow))
        self.device = [Factors(*(self.put(array) for array in each)) for each in self.host]
        options: Any = senders, average
        on_host = HOST.factoring(codec, self.host, *options, np.empty(0))
        needed = [(len(each.p), *each.matrix.shape) for each in self.host]
        scratch = stage.kernels.coding.factoring_scratch(needed)
        on_device = stage.kernels.coding.factoring(codec, self.device, *options, scratch)
        self.factorings: tuple[Factoring, Factoring] = on_host, on_device

    def put(self, array: np.ndarray | None) -> Any:
        """Return a copy in the memory of the kernels; None of nothing."""
        return None if array is None else self.stage.put(array)

    def give(self, *names: str) -> None:
        """Give the device the arrays of the host, so that the next part begins alike."""
        for name in names:
            for host, device in zip(self.host, self.device, strict=True):
                array = getattr(host, name)
                if array is not None and array.size:
                    slot = getattr(device, name).reshape(-1)
                    self.stage.kernels.pack_all([self.stage.put(array)], [slot])

    def gradients(self, scale: float = 1.0) -> None:
        """Give all matrices new gradients."""
        for each in self.host:
            each.matrix[...] = scale * self.rng.standard_normal(each.matrix.shape)
        self.give("matrix")

    def run(self, part: str, skip: Any = None) -> None:
        """Take a part, on both."""
        for factoring in self.factorings:
            getattr(factoring, part)(skip)

    def found(self, name: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return pairs of arrays, of the device and of the host."""
        return [
            (self.stage.get(getattr(device, name)), getattr(host, name))
            for device, host in zip(self.device, self.host, strict=True)
            if getattr(host, name) is not None
        ]

    def check_bits(self, *names: str) -> None:
        """Fail unless arrays of the device have the bits of the host."""
        for name in names:
            for found, expected in self.found(name):
                assert same_bits(found, expected), name

    def check_rows(self, name: str) -> None:
        """Fail unless rows of float64 have been rounded to float32, once."""
        for found, expected in self.found(name):
            np.testing.assert_allclose(found, expected, rtol=2 * ROUNDING, atol=1e-14)
            assert same_bits(found == 0, expected == 0)

    def check_sums(self, name: str, by: str) -> None:
        """Fail unless the elements of P or Q are near those of float64."""
        for shape, (found, _), each in zip(self.shapes, self.found(name), self.host, strict=True):
            matrix = each.matrix.astype(np.float64)
            matrix = matrix.T if by == "start" else matrix
            rows = getattr(each, by).astype(np.float64)
            bound = additions(shape) * ROUNDING * (np.abs(rows) @ np.abs(matrix)) + 1e-37
            assert (np.abs(found - rows @ matrix) <= bound).all()

    def push(self) -> None:
        """Take all parts, each from the arrays of the host, and check what each makes."""
        self.run("project")
        self.check_rows("start")
        self.check_bits("matrix", "residual", "spare")
        self.give("start")
        self.factorings[1].project(self.stage.put(np.ones(1, np.int32)))
        self.check_sums("p", "start")
        self.give("p")
        self.run("project_back")
        self.check_rows("direction")
        self.check_bits("matrix", "p")
        self.check_sums("q", "direction")
        self.give("direction", "q")
        self.run("finish", self.stage.put(np.zeros(1, np.int32)))
        self.check_bits("matrix", "residual", "start", "direction", "q", "p")


class FactoringCases:
    """Cases of `Coding.factoring`."""

    @pytest.mark.parametrize("rank", [1, 2, 3, 4, 9])
    def test_parts_are_those_of_the_host(self, stage: Stage, rank: int) -> None:
        matrices = Matrices(stage, np.random.default_rng(rank), SHAPES, rank, senders=3)
        for scale in (1, 1e-20, 1e15):
            matrices.gradients(scale)
            matrices.push()

    @pytest.mark.parametrize("seed", range(8))
    def test_matrices_of_any_shape(self, stage: Stage, seed: int) -> None:
        rng = np.random.default_rng([8, seed])
        shapes = [(int(rng.integers(1, 200)), int(rng.integers(1, 1200))) for _ in range(3)]
        shapes += [(columns, rows) for rows, columns in shapes]
        matrices = Matrices(
            stage, rng, shapes, int(rng.integers(1, 5)), keeps=bool(rng.integers(2)),
            senders=int(rng.integers(1, 5)), average=bool(rng.integers(2)),
        )  # fmt: skip
        for _ in range(2):
            matrices.gradients()
            matrices.push()

    def test_more_matrices_than_a_launch_takes(self, stage: Stage) -> None:
        shapes = [(2 + index % 7, 3 + index % 5) for index in range(FACTOR_PIECES + 5)]
        matrices = Matrices(stage, np.random.default_rng(0), shapes, 2)
        matrices.gradients()
        matrices.push()
        matrices.gradients()
        stage.launched.clear()
        matrices.run("project")
        assert stage.launched == [*[ORTHONORMALISE] * 4, PROJECT, ADD_TILES] * 2
        stage.launched.clear()
        matrices.run("project_back")
        assert stage.launched == [*[ORTHONORMALISE] * 3, PROJECT_BACK, ADD_TILES] * 2
        stage.launched.clear()
        matrices.run("finish")
        assert stage.launched == [MULTIPLY, MULTIPLY, COPY]

    @pytest.mark.parametrize("rank", [1, 3])
    def test_zeros_stay_zeros_and_lost_rows_are_replaced(self, stage: Stage, rank: int) -> None:
        matrices = Matrices(stage, np.random.default_rng(1), SHAPES, rank, average=True, senders=2)
        for _ in range(2):
            matrices.gradients(0)
            matrices.push()
        for found, _ in matrices.found("matrix"):
            assert not found.any()
        matrices.gradients()
        for each in matrices.host:
            each.start[0] = np.nan
            each.start[1:2] = np.inf
        matrices.give("start")
        matrices.push()

    def test_rows_that_depend_on_others_become_zero(self, stage: Stage) -> None:
        matrices = Matrices(stage, np.random.default_rng(2), SHAPES, 3)
        matrices.gradients()
        matrices.run("project")
        for each in matrices.host:
            each.p[...] = np.outer((2, -4, 0)[: len(each.p)], each.p[0])
        matrices.give("p", "start", "matrix")
        matrices.run("project_back")
        matrices.check_rows("direction")
        for found, _ in matrices.found("direction"):
            assert found[0].any()
            assert not found[1:].any()

    @pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
    def test_numbers_that_are_not_finite_spread(self, stage: Stage, special: float) -> None:
        matrices = Matrices(stage, np.random.default_rng(3), SHAPES, 3)
        matrices.gradients()
        for each in matrices.host:
            each.matrix[-1, 0] = special
        matrices.give("matrix")
        for part in PARTS:
            matrices.run(part)
        for found, _ in matrices.found("matrix"):
            assert not np.isfinite(found).any()
        for found, expected in matrices.found("residual"):
            assert same_bits(np.isfinite(found), np.isfinite(expected))
        for each in matrices.host:
            if each.residual is not None:
                each.residual[...] = 0
        matrices.give("residual")
        matrices.gradients()
        matrices.push()
        for found, _ in matrices.found("matrix"):
            assert np.isfinite(found).all()

    def test_orthonormal_rows_of_numbers_that_are_not_finite(self, stage: Stage) -> None:
        for place in (0, 1, 2):
            for special in (np.nan, np.inf):
                matrices = Matrices(stage, np.random.default_rng(4), [(300, 8)], 3)
                matrices.gradients()
                matrices.run("project")
                matrices.host[0].p[place, 4] = special
                matrices.host[0].p[(place + 1) % 3] = 0
                matrices.give("p", "start", "matrix")
                matrices.run("project_back")
                ((found, expected),) = matrices.found("direction")
                assert same_bits(np.isnan(found), np.isnan(expected))

    def test_a_skipped_launch_changes_nothing(self, stage: Stage) -> None:
        matrices = Matrices(stage, np.random.default_rng(5), SHAPES, 2)
        matrices.gradients()
        flag = stage.put(np.ones(1, np.int32))
        before = {name: [a.copy() for a, _ in matrices.found(name)] for name in Factors._fields}
        for part in PARTS:
            getattr(matrices.factorings[1], part)(flag)
        for name, arrays in before.items():
            for (found, _), expected in zip(matrices.found(name), arrays, strict=True):
                assert same_bits(found, expected), name

    def test_the_same_matrices_give_the_same_bits(self, stage: Stage) -> None:
        runs = []
        for others in ([], [(40, 3), (700, 900)]):
            matrices = Matrices(stage, np.random.default_rng(6), [(190, 1100), *others], 4)
            matrices.gradients()
            if runs:
                matrices.host[0].matrix[...] = runs[0][-1]
                matrices.give("matrix")
            given = matrices.host[0].matrix.copy()
            for part in PARTS:
                getattr(matrices.factorings[1], part)(None)
            arrays = [matrices.found(name)[0][0].copy() for name in Factors._fields]
            runs.append([*arrays, given])
        for first, second in zip(*runs, strict=True):
            assert same_bits(first, second)
