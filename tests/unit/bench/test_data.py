"""Data of the bench: sums are exact, and wrong elements are counted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.data import LEARNING_RATE, MOMENTUM, Descent, Pattern, Sum, addend, total
from bench.models import MODELS, elements
from bench.options import MAX_ROUNDS

LONG = 150_000
"""Length of more than two periods of the pattern."""


@pytest.fixture
def pattern():
    return Pattern(np)


def rank_data(pattern, rank, step, key=0, count=LONG, start=0):
    array = np.empty(count, np.float32)
    pattern.fill(array, addend(rank, step, key), start)
    return array


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("start", [0, 7, 65_520])
def test_sum_over_ranks_is_exact(pattern, size, start):
    result = sum(rank_data(pattern, rank, 5, 9, start=start) for rank in range(size))
    expected = Sum(size)
    expected.advance(5)
    assert pattern.wrong(result, *expected.of(9), start) == 0
    assert pattern.wrong(result, size, total(size, 5, 9), start + 1) > LONG / 2


@pytest.mark.parametrize(
    "ranks", [(0, 1, 2), (0, 1, 2, 2), (0, 1, 1, 3), (1, 1, 1, 1), (0, 0, 2, 3)]
)
def test_wrong_ranks_are_found(pattern, ranks):
    result = sum(rank_data(pattern, rank, 1) for rank in ranks)
    assert pattern.wrong(result, 4, total(4, 1)) == LONG


def test_stale_overwritten_and_shifted_results_are_found(pattern):
    data = rank_data(pattern, 0, 1)
    assert pattern.wrong(data, 1, addend(0, 1)) == 0
    assert pattern.wrong(data, 1, addend(0, 2)) == LONG
    assert pattern.wrong(np.roll(data, 65_536), 1, addend(0, 1)) > LONG / 2
    data[3] = np.nan
    assert pattern.wrong(data, 1, addend(0, 1)) == 1


def test_steps_of_different_turns_differ():
    for between in range(1, 101):
        assert addend(0, 1) != addend(0, 1 + between)


@pytest.mark.parametrize("size", [1, 4, 8])
def test_descent_is_exact_for_as_many_rounds_as_are_allowed(pattern, size):
    """Compare the sums in float32 with single steps; two candidates share a store's weights."""
    expected = Descent(size)
    weights, momenta = np.zeros(LONG, np.float32), np.zeros(LONG, np.float32)
    for step in range(1, 2 * (MAX_ROUNDS + 2) + 1):
        gradient = sum(rank_data(pattern, rank, step, key=28) for rank in range(size))
        momenta = np.float32(MOMENTUM) * momenta - np.float32(LEARNING_RATE) * gradient
        weights += momenta
        expected.advance(step)
        assert pattern.wrong(weights, *expected.of(28)) == 0
    assert pattern.wrong(weights + momenta, *expected.of(28)) == LONG


@pytest.mark.parametrize(
    ("name", "keys", "numbers"),
    [
        ("ResNet-50", 161, 25_557_032),
        ("GPT-2", 148, 124_439_808),
        ("BERT-large", 391, 335_141_888),
    ],
)
def test_models_have_the_keys_of_their_papers(name, keys, numbers):
    shapes = MODELS[name]()
    assert len(shapes) == keys
    assert elements(shapes) == numbers == sum(math.prod(shape) for shape in shapes.values())
