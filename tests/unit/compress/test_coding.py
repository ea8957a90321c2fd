"""The host's arithmetic of codecs on ranges: the same numbers as from whole keys."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ncclkv.compress.coding import HostCoding, coding_of
from ncclkv.compress.half import FP16
from ncclkv.compress.topk import TopK
from ncclkv.kernels.host import HostKernels
from tests.codecs import MODELS, numbers, quantiser, total_of

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")

ENTRIES = [(0, 50), (64, 264), (320, 321)]
COUNT = 384


def gradients_of(seed: int) -> np.ndarray:
    return numbers(np.random.default_rng(seed), COUNT, special=False)


def zeros() -> list[np.ndarray]:
    return [np.zeros(hi - lo, np.float32) for lo, hi in ENTRIES]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("divisor", [None, 3])
def test_codes_and_counts_give_the_sum_of_any_elements(name: str, divisor: int | None) -> None:
    codec, coding = quantiser(name), HostCoding()
    given = [gradients_of(seed) for seed in range(3)]
    models = [MODELS[name](0.5, COUNT) for _ in given]
    total = total_of(
        [model.push(each)[1] for model, each in zip(models, given, strict=True)], models[0].step
    )
    total = total if divisor is None else total / np.float32(divisor)
    payloads = [np.empty(codec.nbytes(COUNT), np.uint8) for _ in given]
    for array, payload in zip(given, payloads, strict=True):
        coding.encoding(codec, [(0, COUNT)], array, [np.zeros(COUNT, np.float32)], payload)(None)
    out = np.empty(COUNT, np.float32)
    for first in (0, 1, 13):
        part = out[first:]
        coding.decode(codec, payloads, first, part, divisor)
        assert part.tobytes() == total[first:].tobytes()
    packed = np.empty(codec.packed_nbytes(COUNT, 3), np.uint8)
    coding.pack(codec, payloads, COUNT, packed)
    coding.unpack(codec, packed, 3, out, divisor)
    assert out.tobytes() == total.tobytes()


def test_arrays_that_are_given_are_encoded_in_place_of_the_range() -> None:
    codec, coding = quantiser("2bit"), HostCoding()
    own, others = gradients_of(1), gradients_of(2)
    results = []
    for array, given in ((others, None), (own, [others[lo:hi] for lo, hi in ENTRIES])):
        payload, residuals = np.zeros(codec.nbytes(COUNT), np.uint8), zeros()
        found = coding.encoding(codec, ENTRIES, array, residuals, payload)(None, given)
        results.append((payload.tobytes(), [each.tobytes() for each in residuals], found.beyond))
        sent = np.concatenate([others[lo:hi] for lo, hi in ENTRIES]).astype(np.float64)
        assert found.root_mean_square() == pytest.approx(math.sqrt(np.mean(sent**2)))
    assert results[0] == results[1]


def test_the_largest_of_given_arrays_are_taken() -> None:
    codec, coding, array = TopK(0.2), HostCoding(), gradients_of(3)
    results = []
    for own, given in ((array, None), (-array, [array[lo:hi] for lo, hi in ENTRIES])):
        payload = np.zeros(sum(codec.nbytes(hi - lo) for lo, hi in ENTRIES), np.uint8)
        coding.taking(codec, ENTRIES, own, zeros(), payload)(None, given)
        out, part = np.zeros(COUNT, np.float32), np.zeros(100, np.float32)
        coding.adding(codec, ENTRIES, 0)(payload, out)
        coding.adding(codec, ENTRIES[1:2], 70)(payload[codec.nbytes(50) :], part)
        assert part.tobytes() == out[70:170].tobytes()
        results.append(payload.tobytes())
    assert results[0] == results[1]
    assert np.count_nonzero(out) == sum(codec.kept(hi - lo) for lo, hi in ENTRIES)


def test_entries_alone_are_rounded_if_they_keep_residuals() -> None:
    codec, coding, array = FP16(error_feedback=True), coding_of(HostKernels()), gradients_of(4)
    payload, residuals = np.full(COUNT, 7, np.float16), zeros()
    coding.rounding(codec, array, ENTRIES, residuals, payload)(None)
    inside = np.concatenate([np.arange(lo, hi) for lo, hi in ENTRIES])
    assert payload[inside].tobytes() == array[inside].astype(np.float16).tobytes()
    assert (np.delete(payload, inside) == 7).all()
    kept = array[inside] - payload[inside].astype(np.float32)
    assert np.concatenate(residuals).tobytes() == kept.tobytes()
