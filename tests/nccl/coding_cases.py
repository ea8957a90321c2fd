"""Cases of the kernels that encode gradients and decode sums: the bits of the host's codecs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ncclkv.compress.coding import HostCoding
from ncclkv.compress.entries import Padding
from ncclkv.compress.half import BF16, FP16, Half
from ncclkv.compress.topk import TopK
from ncclkv.kernels.device.kernel_args import (
    ENCODED_ELEMENTS,
    PARTS,
    PIECES,
    ROUNDED_ELEMENTS,
    TAKEN_ELEMENTS,
    TAKEN_PIECES,
)
from ncclkv.kernels.device.sources import CODES as KERNEL_CODES
from ncclkv.kernels.device.sources import ENCODE, NARROW, WIDEN
from tests.codecs import MODELS, numbers, quantiser
from tests.nccl.kernel_cases import POISON, Stage, any_bits, dtype_of, same_bits

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


CODES = [*MODELS]
THRESHOLDS = [("2bit", 0.5), ("2bit", 1.7), ("1bit", 0.0), ("1bit", -0.1)]


def encoded(
    stage: Stage, name: str, gradients: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[Any]]:
    """Return the payloads of senders with new residuals, by the host and by the device."""
    codec, host, device = quantiser(name), [], []
    for given in gradients:
        payload = np.zeros(codec.nbytes(given.size), np.uint8)
        codec.encode(given, np.zeros(given.size, np.float32), payload)
        host.append(payload)
        device.append(stage.put(payload))
    return host, device


class CodeCases:
    """Cases of `Coding.encoding`, `decode`, `pack`, `unpack` and `clear`."""

    @pytest.mark.parametrize("begin", [0, 64, 192])
    @pytest.mark.parametrize("special", [False, True], ids=["finite", "special"])
    @pytest.mark.parametrize(("name", "threshold"), THRESHOLDS)
    def test_keys_of_every_length_are_encoded(
        self, stage: Stage, name: str, threshold: float, special: bool, begin: int
    ) -> None:
        rng, codec = np.random.default_rng(3), quantiser(name, threshold)
        entries, count = entries_of([*LENGTHS, 0, ENCODED_ELEMENTS + 1, *[3] * PIECES])
        residuals = [np.zeros(hi - lo, np.float32) for lo, hi in entries]
        owed = [stage.put(residual) for residual in residuals]
        payload, start = np.zeros(codec.nbytes(begin + count), np.uint8), codec.nbytes(begin)
        codes, bucket = stage.put(payload), stage.put(np.zeros(begin + count, np.float32))
        device = entries, bucket[begin:], owed, codes[start:]
        encode = stage.kernels.coding.encoding(codec, *device)
        flags = [stage.put(np.full(1, flag, np.int32)) for flag in (1, 0)]
        for push in range(3):
            gradients = numbers(rng, begin + count, special)
            stage.kernels.pack_all([stage.put(gradients)], [bucket])
            expected = HOST.encoding(codec, entries, gradients[begin:], residuals, payload[start:])
            counted = expected(None)
            encode(flags[0])
            encode(flags[1] if push else None)
            assert stage.get(codes).tobytes() == payload.tobytes()
            for found, wanted in zip(owed, residuals, strict=True):
                assert same_bits(stage.get(found), wanted)
            stage.settle()
            assert [*encode.beyond] == counted.beyond
            assert encode.root_mean_square() == pytest.approx(
                counted.root_mean_square(), nan_ok=True
            )
        assert stage.launched.count(ENCODE[name]) == 2 * 2 * 3

    @pytest.mark.parametrize("senders", [1, 2, 3, 7])
    @pytest.mark.parametrize("name", CODES)
    def test_sums_of_every_length_and_begin(self, stage: Stage, name: str, senders: int) -> None:
        rng, codec = np.random.default_rng(4), quantiser(name, 0.3)
        for length in (*range(1, 71), 255, 256, 257, 4095, 4097):
            first = length % codec.unit
            given = [numbers(rng, first + length, special=False) for _ in range(senders)]
            host, device = encoded(stage, name, given)
            for divisor in (None, senders):
                expected = np.empty(length, np.float32)
                HOST.decode(codec, host, first, expected, divisor)
                out = stage.poisoned(length + 2, np.dtype(np.float32))
                before = stage.get(out)
                stage.kernels.coding.decode(codec, device, first, out[1:-1], divisor)
                after = stage.get(out)
                assert after[1:-1].tobytes() == expected.tobytes()
                assert after[[0, -1]].tobytes() == before[[0, -1]].tobytes()

    @pytest.mark.parametrize("senders", [1, 2, 3, 4, 7, 8, 15, 16, 127, 128, PARTS, 600])
    @pytest.mark.parametrize("name", CODES)
    def test_counts_are_packed_and_decoded(self, stage: Stage, name: str, senders: int) -> None:
        rng, codec = np.random.default_rng(5), quantiser(name)
        coding = stage.kernels.coding
        for length in (1, 2, 3, 5, 8, 13, 31, 64, 70, 1025):
            given = [numbers(rng, length, special=False) for _ in range(min(senders, 40))]
            host, device = encoded(stage, name, given)
            host, device = ((each * senders)[:senders] for each in (host, device))
            nbytes = codec.packed_nbytes(length, senders)
            packed = np.empty(nbytes, np.uint8)
            HOST.pack(codec, host, length, packed)
            found = stage.poisoned(nbytes + 1, np.dtype(np.uint8))
            coding.pack(codec, device, length, found[:-1])
            assert stage.get(found).tobytes() == packed.tobytes() + bytes([POISON])
            for divisor in (None, senders):
                expected = np.empty(length, np.float32)
                HOST.unpack(codec, packed, senders, expected, divisor)
                out = stage.poisoned(length, expected.dtype)
                coding.unpack(codec, found[:-1], senders, out, divisor)
                assert stage.get(out).tobytes() == expected.tobytes()
                out = stage.poisoned(length, expected.dtype)
                coding.decode(codec, device, 0, out, divisor)
                assert stage.get(out).tobytes() == expected.tobytes()

    def test_padding_is_cleared_and_nothing_else(self, stage: Stage) -> None:
        entries, count = entries_of([*LENGTHS, *[3] * 2 * PIECES])
        padding = Padding(entries, count)
        for start, stop in (0, count), (0, count), (70, count - 10), (3, 9):
            expected = np.ones(stop - start, np.float32)
            out = stage.put(expected)
            padding.clear(start, expected)
            stage.kernels.coding.clear(padding, start, out)
            assert stage.get(out).tobytes() == expected.tobytes()

    def test_the_codecs_are_those_of_the_host(self) -> None:
        found = {name: (quantiser(name).bits, tuple(quantiser(name).levels)) for name in MODELS}
        assert found == KERNEL_CODES


def many_equal(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return numbers of few magnitudes, so that many are equal."""
    return (rng.integers(-6, 7, count) / 8).astype(np.float32)


DRAWS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "finite": lambda rng, count: numbers(rng, count, special=False),
    "special": lambda rng, count: numbers(rng, count, special=True),
    "equal": many_equal,
    "any": lambda rng, count: any_bits(rng, count, "float32"),
}


class LargestCases:
    """Cases of `Coding.taking` and `Coding.adding`."""

    @pytest.mark.parametrize("begin", [0, 192])
    @pytest.mark.parametrize("draw", DRAWS)
    @pytest.mark.parametrize("ratio", [0.001, 0.1, 1])
    def test_the_largest_are_taken(self, stage: Stage, ratio: float, draw: str, begin: int) -> None:
        rng, codec = np.random.default_rng(6), TopK(ratio)
        entries, count = entries_of([*LENGTHS, TAKEN_ELEMENTS + 1, *[3] * TAKEN_PIECES])
        residuals = [np.zeros(hi - lo, np.float32) for lo, hi in entries]
        owed = [stage.put(residual) for residual in residuals]
        payload = np.zeros(sum(codec.nbytes(hi - lo) for lo, hi in entries), np.uint8)
        sent, bucket = stage.put(payload), stage.put(np.zeros(begin + count, np.float32))
        take = stage.kernels.coding.taking(codec, entries, bucket[begin:], owed, sent)
        flags = [stage.put(np.full(1, flag, np.int32)) for flag in (1, 0)]
        for push in range(3):
            gradients = DRAWS[draw](rng, begin + count)
            stage.kernels.pack_all([stage.put(gradients)], [bucket])
            HOST.taking(codec, entries, gradients[begin:], residuals, payload)(None)
            take(flags[0])
            take(flags[1] if push else None)
            assert same_bits(stage.get(sent).view(np.float32), payload.view(np.float32))
            for found, wanted in zip(owed, residuals, strict=True):
                assert same_bits(stage.get(found), wanted)

    @pytest.mark.parametrize("draw", ["finite", "special"])
    def test_numbers_are_added_at_their_indices(self, stage: Stage, draw: str) -> None:
        rng, codec = np.random.default_rng(7), TopK(0.2)
        entries, count = entries_of([*LENGTHS, *[3] * PIECES])
        payloads = [np.zeros(sum(codec.nbytes(hi - lo) for lo, hi in entries), np.uint8)] * 3
        for index in range(3):
            payloads[index] = payloads[index].copy()
            residuals = [np.zeros(hi - lo, np.float32) for lo, hi in entries]
            gradients = DRAWS[draw](rng, count)
            HOST.taking(codec, entries, gradients, residuals, payloads[index])(None)
        for first, stop in (0, count), (70, count - 30), (20_000, 20_003):
            expected = np.ones(stop - first, np.float32)
            out = stage.put(expected)
            add = stage.kernels.coding.adding(codec, entries, first)
            wanted = HOST.adding(codec, entries, first)
            for payload in payloads:
                wanted(payload, expected)
                add(stage.put(payload), out)
            assert same_bits(stage.get(out), expected)
