"""Cases of the kernels that encode gradients and decode sums: the bits of the host's codecs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclkv.compress.coding import HostCoding
from ncclkv.compress.half import BF16, FP16, Half
from ncclkv.kernels.device.kernel_args import PIECES, ROUNDED_ELEMENTS
from ncclkv.kernels.device.sources import NARROW, WIDEN
from tests.codecs import numbers
from tests.nccl.kernel_cases import Stage, any_bits, dtype_of, same_bits

HOST = HostCoding()
HALVES: dict[str, Half] = {"float16": FP16(True), "bfloat16": BF16(True)}
LENGTHS = [*range(1, 71), *(2**k + more for k in range(7, 14) for more in (-1, 0, 1)), 20_000]
"""Lengths of keys; those of several blocks are included."""


def entries_of(lengths: list[int]) -> tuple[list[tuple[int, int]], int]:
    """Return the elements of keys that begin at multiples of 256 bytes, and the length of all."""
    entries, end = [], 0
    for length in lengths:
        entries.append((end, end + length))
        end += -(-length // 64) * 64
    return entries, end


def ties(name: str) -> np.ndarray:
    """Return numbers between two neighbours of 16 bits, and others next to them."""
    words = np.arange(1 << 16, dtype=np.uint16).view(dtype_of(name))
    with np.errstate(all="ignore"):
        wide = words.astype(np.float32)
        middle = (wide[1:] + wide[:-1]) / 2
        below, above = np.nextafter(middle, -np.inf), np.nextafter(middle, np.inf)
    return np.concatenate([wide, middle, below, above]).astype(np.float32)


class HalfCases:
    """Cases of `Coding.rounding` and `Coding.widen`."""

    @pytest.mark.parametrize(("name", "wide"), WIDEN)
    def test_every_word_is_widened(self, stage: Stage, name: str, wide: str) -> None:
        words = np.arange(1 << 16, dtype=np.uint16).view(dtype_of(name))
        expected = np.empty(words.size, wide)
        HOST.widen(HALVES[name], words, expected)
        out = stage.poisoned(words.size, np.dtype(wide))
        stage.kernels.coding.widen(HALVES[name], stage.put(words), out)
        assert same_bits(stage.get(out), expected)
        assert stage.launched == [WIDEN[name, wide]]

    @pytest.mark.parametrize(("wide", "name"), NARROW)
    def test_gradients_are_rounded_to_the_nearest(self, stage: Stage, wide: str, name: str) -> None:
        rng = np.random.default_rng(1)
        given = [ties(name), any_bits(rng, 5000, "float32"), any_bits(rng, 5000, wide)]
        with np.errstate(invalid="ignore"):  # of signalling NaNs
            gradients = np.concatenate([each.astype(wide) for each in given])
        whole = [(0, gradients.size)]
        expected = np.empty(gradients.size, dtype_of(name))
        HOST.rounding(HALVES[name], gradients, whole, [], expected)(None)
        words = stage.poisoned(gradients.size, dtype_of(name))
        stage.kernels.coding.rounding(HALVES[name], stage.put(gradients), whole, [], words)(None)
        assert same_bits(stage.get(words), expected)
        assert stage.launched == [NARROW[wide, name]]

    @pytest.mark.parametrize("begin", [0, 64, 192])
    @pytest.mark.parametrize(("wide", "name"), NARROW)
    def test_residuals_keep_what_is_lost(
        self, stage: Stage, wide: str, name: str, begin: int
    ) -> None:
        rng = np.random.default_rng(2)
        entries, count = entries_of([*LENGTHS, 0, ROUNDED_ELEMENTS + 1, *[3] * PIECES])
        residuals = [np.zeros(hi - lo, np.float32) for lo, hi in entries]
        owed = [stage.put(residual) for residual in residuals]
        words = np.zeros(begin + count, dtype_of(name))
        given = stage.put(words)
        for push in range(3):
            with np.errstate(invalid="ignore"):
                gradients = numbers(rng, begin + count, special=push == 1).astype(wide)
            arrays = gradients[begin:], entries, residuals, words[begin:]
            HOST.rounding(HALVES[name], *arrays)(None)
            device = stage.put(gradients)[begin:], entries, owed, given[begin:]
            encode = stage.kernels.coding.rounding(HALVES[name], *device)
            encode(stage.put(np.ones(1, np.int32)))
            encode(stage.put(np.zeros(1, np.int32)) if push else None)
            assert same_bits(stage.get(given), words)
            for found, expected in zip(owed, residuals, strict=True):
                assert same_bits(stage.get(found), expected)
        assert stage.launched == [NARROW[wide, name]] * 2 * 3 * 2

    def test_no_elements_need_no_launch(self, stage: Stage) -> None:
        nothing: Any = stage.put(np.empty(0, np.float16))
        empty = stage.put(np.empty(0, np.float32))
        stage.kernels.coding.rounding(HALVES["float16"], empty, [(0, 0)], [], nothing)(None)
        stage.kernels.coding.widen(HALVES["float16"], nothing, empty)
        assert stage.launched == []
