"""The division of arrays into chunks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.kernels.host.chunks import CHUNK_BYTES, blocks, chunk_length, ranges, working_dtype


@settings(deadline=None)
@given(st.lists(st.integers(0, 7), max_size=4), st.integers(1, 20))
def test_blocks_cover_an_array_once_in_c_order(lengths: list[int], length: int) -> None:
    x = np.arange(math.prod(lengths)).reshape(lengths)
    pieces = [x[block] for block in blocks(x.shape, length)]
    assert all(isinstance(piece, np.ndarray) and piece.size <= length for piece in pieces)
    assert all(piece.size == 0 or np.shares_memory(piece, x) for piece in pieces)
    assert [item for piece in pieces for item in piece.ravel().tolist()] == list(range(x.size))


def test_blocks_are_whole_rows_where_rows_fit() -> None:
    assert [x.size for x in _cut((10, 4), 12)] == [12, 12, 12, 4]
    assert [x.size for x in _cut((2, 10), 4)] == [4, 4, 2, 4, 4, 2]


def test_ranges() -> None:
    assert list(ranges(7, 3)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(ranges(0, 3)) == []


@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "complex128"])
def test_a_piece_is_measured_in_the_dtype_of_its_arithmetic(dtype: str) -> None:
    working = working_dtype(np.dtype(dtype))
    assert working == (np.float32 if dtype == "float16" else np.dtype(dtype))
    assert chunk_length(working) * working.itemsize == CHUNK_BYTES


def _cut(shape: tuple[int, ...], length: int) -> list[np.ndarray]:
    x = np.zeros(shape)
    return [x[block] for block in blocks(shape, length)]
