"""Casts to 16 bits and back, in NumPy and in C: all 65,536 patterns, and what lies between."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from ncclkv.kernels.host.narrow import TILE, narrow, narrow_with_rest, widen
from tests.codecs import same

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")

PATTERNS = np.arange(1 << 16, dtype=np.uint16)
KINDS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def words_of(name: str, count: int) -> np.ndarray:
    """Return an array for words, as the casts take it."""
    return np.empty(count, np.float16 if name == "float16" else np.uint16)


@pytest.mark.parametrize("name", [*KINDS])
def test_every_word_is_widened_and_comes_back(name: str) -> None:
    words = PATTERNS.view(words_of(name, 0).dtype)
    values, back = np.empty(words.size, np.float32), words_of(name, words.size)
    widen(words, values)
    with np.errstate(invalid="ignore"):
        expected = PATTERNS.view(KINDS[name]).astype(np.float32)
    assert same(values, expected)
    narrow(values, back)
    is_nan = np.isnan(expected)
    assert back[~is_nan].tobytes() == words[~is_nan].tobytes()
    assert np.isnan(back.view(KINDS[name]).astype(np.float32)[is_nan]).all()


@pytest.mark.parametrize("name", [*KINDS])
def test_numbers_between_two_words_are_rounded_to_the_nearest(name: str) -> None:
    with np.errstate(all="ignore"):
        near = PATTERNS.view(KINDS[name]).astype(np.float32).view(np.uint32)
        # The halves between neighbours, and one bit less and more.
        half = 1 << (12 if name == "float16" else 15)
        bits = np.concatenate([near + np.uint32(half + more) for more in (-1, 0, 1)])
        values = bits.view(np.float32)
        expected = values.astype(KINDS[name])
    words = words_of(name, values.size)
    narrow(values, words)
    found = words.view(KINDS[name])
    assert same(found.astype(np.float32), expected.astype(np.float32))


def test_a_nan_of_bfloat16_keeps_its_upper_bits_in_numpy_and_in_c() -> None:
    bits = np.array([0x7F800001, 0xFFFFFFFF, 0x7FBFFFFF, 0xFF812345], np.uint32)
    words = np.empty(4, np.uint16)
    narrow(bits.view(np.float32), words)
    assert [hex(word) for word in words.tolist()] == ["0x7fc0", "0xffff", "0x7fff", "0xffc1"]


@pytest.mark.parametrize("name", [*KINDS])
def test_arrays_of_any_strides_are_cast(name: str) -> None:
    given = np.linspace(-9, 9, 2 * TILE + 6, dtype=np.float32)
    words, back = words_of(name, 2 * TILE + 6), np.zeros_like(given)
    narrow(given[::2], words[1::2])
    widen(words[1::2], back[::2])
    assert same(back[::2], given[::2].astype(KINDS[name]).astype(np.float32))
    assert not back[1::2].any()


@pytest.mark.parametrize("name", [*KINDS])
@pytest.mark.parametrize("count", [1, 7, 1023, 1025, TILE + 3])
def test_the_rest_is_what_a_word_has_lost(name: str, count: int) -> None:
    rng = np.random.default_rng(count)
    gradients, residual = rng.standard_normal((2, count)).astype(np.float32)
    gradients[::5] = rng.choice([np.nan, np.inf, 1e5, 3.4e38, 1e-45, -0.0], gradients[::5].size)
    with np.errstate(all="ignore"):
        sums = residual + gradients
        sent = sums.astype(KINDS[name]).astype(np.float32)
        rest = np.where(np.isfinite(sent), sums - sent, np.float32(0))
    words = words_of(name, count)
    narrow_with_rest(gradients, residual, words)
    back = np.empty(count, np.float32)
    widen(words, back)
    assert same(back, sent)
    assert same(residual, rest)


@pytest.mark.parametrize("name", [*KINDS])
def test_no_array_is_allocated(name: str) -> None:
    values = np.ones(1 << 20, np.float32)
    words = words_of(name, values.size)
    tracemalloc.start()
    narrow(values, words)
    widen(words, values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < values.nbytes / 8
