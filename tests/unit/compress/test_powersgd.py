"""powersgd: sums of ranks against a plain model in float64, and what residuals keep."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from ncclkv.compress.powersgd import PowerSGD, matrix_shape

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")

PUSHES = 30
RANKS = [1, 2, 3, 4]


class Senders:
    """The matrices, residuals and common Q of some senders of a key."""

    def __init__(self, codec: PowerSGD, number: int, shape: tuple[int, int]) -> None:
        self.codec, self.number = codec, number
        self.residuals = np.zeros((number, *shape), np.float32)
        (rank, rows), _ = codec.narrow_shapes(shape)
        self.p, self.q = np.empty((rank, rows), np.float32), codec.basis("key", shape)
        self.spare = self.q.copy()

    def push(self, gradients: np.ndarray, average: bool = False) -> np.ndarray:
        """Return the sum that every sender has; all have the same bits."""
        codec, matrices = self.codec, gradients.astype(np.float32)
        ps, qs = [], []
        codec.renew(self.q, self.spare)
        for matrix, residual in zip(matrices, self.residuals, strict=True):
            codec.project(matrix, residual, self.q, self.p)
            ps.append(self.p.copy())
        total = np.add.reduce(ps)
        for matrix in matrices:
            self.p = total.copy()
            codec.project_back(matrix, self.p, self.q)
            qs.append(self.q.copy())
        self.q = np.add.reduce(qs)
        for matrix, residual in zip(matrices, self.residuals, strict=True):
            codec.finish(matrix, self.p, self.q, residual, self.number, average)
        assert len({matrix.tobytes() for matrix in matrices}) == 1
        return matrices[0]


def low_rank(rng: np.random.Generator, rank: int, shape: tuple[int, int]) -> np.ndarray:
    return rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-5) -> bool:
    """Return whether matrices differ by little, compared with their norm."""
    return bool(np.linalg.norm(found - expected) <= tolerance * (1 + np.linalg.norm(expected)))


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("senders", [1, 3])
@pytest.mark.parametrize("shape", [(20, 30), (64, 9), (5, 200)])
def test_pushes_are_those_of_the_model(rank: int, senders: int, shape: tuple[int, int]) -> None:
    rng, codec = np.random.default_rng(rank), PowerSGD(matrix_approximation_rank=rank)
    ours = Senders(codec, senders, shape)
    residuals, q = np.zeros((senders, *shape)), codec.basis("key", shape).T.astype(float)
    for _ in range(5):
        gradients = rng.standard_normal((senders, *shape))
        found = ours.push(gradients)
        matrices = gradients + residuals
        # The sum is the part of all matrices in the space of P.
        p = np.linalg.qr(matrices.sum(axis=0) @ q)[0]
        q = matrices.sum(axis=0).T @ p
        expected = p @ q.T
        residuals = matrices - expected / senders
        assert close(found, expected, 1e-3)
        for ours_left, left in zip(ours.residuals, residuals, strict=True):
            assert close(ours_left, left, 1e-3)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("true_rank", RANKS)
def test_a_matrix_of_no_higher_rank_is_sent_whole(rank: int, true_rank: int) -> None:
    gradients = low_rank(np.random.default_rng(0), true_rank, (40, 50))[None]
    ours = Senders(PowerSGD(matrix_approximation_rank=rank), 1, (40, 50))
    assert close(ours.push(gradients), gradients[0], 1e-4) == (true_rank <= rank)


@pytest.mark.parametrize("rank", RANKS)
def test_the_sum_of_residuals_is_what_is_owed(rank: int) -> None:
    rng, senders = np.random.default_rng(rank), 3
    ours = Senders(PowerSGD(matrix_approximation_rank=rank), senders, (30, 40))
    pushed, sent = np.zeros((2, 30, 40))
    for _ in range(PUSHES):
        gradients = rng.standard_normal((senders, 30, 40)).astype(np.float32)
        pushed += gradients.sum(axis=0)
        sent += ours.push(gradients)
    assert close(sent + ours.residuals.sum(axis=0), pushed)


def test_a_constant_gradient_is_sent_in_the_end() -> None:
    """The parts that a push leaves out come in later pushes."""
    gradients = low_rank(np.random.default_rng(1), 6, (30, 40))[None]
    ours, sent = Senders(PowerSGD(matrix_approximation_rank=2), 1, (30, 40)), np.zeros((30, 40))
    for _ in range(PUSHES):
        sent += ours.push(gradients)
    assert np.linalg.norm(sent / PUSHES - gradients[0]) < 0.2 * np.linalg.norm(gradients[0])


def test_an_average_is_the_sum_divided() -> None:
    gradients = np.random.default_rng(2).standard_normal((3, 20, 30))
    codec = PowerSGD(matrix_approximation_rank=2)
    total, mean = Senders(codec, 3, (20, 30)), Senders(codec, 3, (20, 30))
    found = total.push(gradients)
    assert mean.push(gradients, average=True).tolist() == (found / np.float32(3)).tolist()
    assert mean.residuals.tobytes() == total.residuals.tobytes()


@pytest.mark.parametrize("rank", RANKS)
def test_zeros_send_zeros(rank: int) -> None:
    ours = Senders(PowerSGD(matrix_approximation_rank=rank), 2, (20, 30))
    for _ in range(3):
        assert not ours.push(np.zeros((2, 20, 30))).any()
        assert not ours.residuals.any()
    gradients = np.ones((2, 20, 30))
    assert close(ours.push(gradients), gradients.sum(axis=0))
    assert close(ours.residuals, np.zeros((2, 20, 30)))


def test_a_direction_that_was_lost_comes_back() -> None:
    """A gradient of one element leaves one row of Q; later ones need both."""
    ours = Senders(PowerSGD(matrix_approximation_rank=2), 1, (20, 30))
    first = np.zeros((1, 20, 30))
    first[0, 3, 4] = 1
    ours.push(first)
    gradients = low_rank(np.random.default_rng(5), 2, (20, 30))[np.newaxis]
    for _ in range(20):
        ours.push(gradients)
    assert np.linalg.norm(ours.residuals) < 1e-3 * np.linalg.norm(gradients)


def test_a_residual_is_kept_only_if_it_is_given() -> None:
    codec, rng = PowerSGD(use_error_feedback=False), np.random.default_rng(3)
    assert not codec.keeps_residual
    matrix = rng.standard_normal((20, 30)).astype(np.float32)
    given, p, q = matrix.copy(), np.empty((1, 20), np.float32), codec.basis(3, (20, 30))
    codec.project(matrix, None, q, p)
    assert matrix.tobytes() == given.tobytes()
    codec.project_back(matrix, p, q)
    codec.finish(matrix, p, q, None, 1)
    assert np.linalg.matrix_rank(matrix, 1e-4) == 1


def test_nan_is_seen() -> None:
    ours, gradients = Senders(PowerSGD(), 2, (20, 30)), np.ones((2, 20, 30))
    gradients[1, 3, 4] = np.nan
    assert np.isnan(ours.push(gradients)).all()


def test_nan_does_not_stay_in_q() -> None:
    ours, gradients = Senders(PowerSGD(), 1, (20, 30)), np.ones((1, 20, 30))
    ours.push(gradients * np.nan)
    ours.residuals[...] = 0
    assert close(ours.push(gradients), gradients[0])


SHAPES: list[tuple[Sequence[int], tuple[int, int]]] = [
    ((), (1, 1)),
    ((7,), (7, 1)),
    ((7, 3), (7, 3)),
    ((64, 32, 3, 3), (64, 288)),
    ((0, 3), (0, 3)),
]


@pytest.mark.parametrize(("shape", "matrix"), SHAPES)
def test_a_matrix_has_a_row_for_each_index_of_the_first_dimension(
    shape: Sequence[int], matrix: tuple[int, int]
) -> None:
    assert matrix_shape(shape) == matrix
    assert math.prod(shape) == math.prod(matrix)


@pytest.mark.parametrize(
    ("rank", "rate", "shape", "compressed"),
    [
        (1, 2.0, (4, 4), False),  # 16 numbers, and 8 of the narrow matrices
        (1, 2.0, (5, 4), True),
        (1, 2.0, (1000,), False),
        (1, 2.0, (), False),
        (1, 2.0, (0, 5), False),
        (4, 2.0, (16, 16), False),
        (4, 2.0, (17, 16), True),
        (1, 10.0, (20, 20), False),
        (1, 10.0, (21, 20), True),
        (100, 0.01, (3, 5), True),
    ],
)
def test_a_key_is_compressed_if_it_becomes_small_enough(
    rank: int, rate: float, shape: tuple[int, ...], compressed: bool
) -> None:
    codec = PowerSGD(matrix_approximation_rank=rank, min_compression_rate=rate)
    assert codec.pays(shape, 4) == compressed


def test_a_rank_is_at_most_that_of_the_matrix() -> None:
    codec = PowerSGD(matrix_approximation_rank=100, min_compression_rate=0.01)
    assert codec.narrow_shapes((3, 5)) == ((3, 3), (3, 5))
    assert codec.basis("w", (3, 5)).shape == (3, 5)


def test_a_basis_depends_on_key_seed_and_launch() -> None:
    def basis(key: int | str = "w", seed: int = 0, launch: int = 0) -> bytes:
        return PowerSGD(random_seed=seed).basis(key, (20, 30), launch).tobytes()

    assert basis() == basis()
    assert (
        len({basis(), basis("v"), basis(3), basis(seed=1), basis(launch=1), basis(launch=2)}) == 6
    )
    assert PowerSGD().basis("\udcff", (20, 30)).dtype == np.float32
    expected = np.random.default_rng((0, 0x7CD5541)).standard_normal((1, 30), np.float32)
    assert PowerSGD().basis("weight", (20, 30)).tolist() == expected.tolist()
