"""Codecs of few bits, in NumPy and in C, against plain models."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.compress.quantiser import Quantiser, levels_of_bytes
from tests.codecs import MODELS, numbers, quantiser, same, total_of, zeros
from tests.harness.extent import examples

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")

NAMES = [*MODELS]
LENGTHS = st.integers(1, 70) | st.builds(
    lambda power, more: (1 << power) + more, st.integers(7, 15), st.sampled_from([-1, 0, 1])
)
THRESHOLDS = st.sampled_from([0.5, 0.1, 1.0, 2.0, 1e-40, 1e30])
PUSHES = 30
SENDERS = [1, 2, 3, 4]


def written(
    codec: Quantiser, gradients: np.ndarray, residual: np.ndarray
) -> tuple[np.ndarray, int]:
    """Encode into memory that is not 0; return the payload and the number of large residuals."""
    payload = np.full(codec.nbytes(gradients.size) + 1, 255, np.uint8)[1:]
    return payload, codec.encode(gradients, residual, payload)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=examples(25))
@given(
    st.integers(0, 2**32),
    LENGTHS,
    THRESHOLDS,
    st.sampled_from(SENDERS),
    st.booleans(),
    st.integers(0, 3),
)
def test_pushes_are_those_of_the_model(
    name: str, seed: int, count: int, threshold: float, senders: int, special: bool, offset: int
) -> None:
    rng, given = np.random.default_rng(seed), quantiser(name, threshold)
    models = [MODELS[name](threshold, count) for _ in range(senders)]
    residuals = [zeros(count, offset) for _ in range(senders)]
    counts, unpacked = np.empty((2, count), np.uint16)
    out = zeros(count, offset)
    packed = np.empty(given.packed_nbytes(count, senders), np.uint8)
    for _ in range(PUSHES if count < 1000 else 4):
        payloads, sent = [], []
        for model, residual in zip(models, residuals, strict=True):
            gradients = numbers(rng, count, special, offset)
            gradients.flags.writeable = False
            payload, beyond = written(given, gradients, residual)
            codes, values, large = model.push(gradients)
            assert payload.tobytes() == model.payload(codes)
            assert same(residual, model.residual)
            assert beyond == large
            payloads.append(payload)
            sent.append(values)
        given.count_sum(payloads, counts)
        given.pack_counts(counts, packed, senders)
        given.unpack_counts(packed, unpacked, senders)
        given.finish(unpacked, senders, out)
        assert np.array_equal(counts, unpacked)
        assert out.tobytes() == total_of(sent, models[0].step).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_arrays_that_c_does_not_take_are_encoded_too(name: str) -> None:
    given, model = quantiser(name), MODELS[name](0.5, 100)
    rng = np.random.default_rng(0)
    residual, gradients = np.zeros((2, 100, 2), np.float32)
    gradients[...] = rng.standard_normal((100, 2))
    payload = np.empty((given.nbytes(100), 3), np.uint8)[:, 1]
    counts, out = np.empty((100, 2), np.uint16)[:, 0], np.empty((100, 2), np.float32)[:, 1]
    packed = np.empty((given.packed_nbytes(100, 1), 2), np.uint8)[:, 0]
    given.encode(gradients[:, 0], residual[:, 1], payload)
    codes, values, _ = model.push(gradients[:, 0])
    assert payload.tobytes() == model.payload(codes)
    assert same(residual[:, 1], model.residual)
    assert not residual[:, 0].any()
    given.count_sum([payload], counts)
    given.pack_counts(counts, packed, 1)
    counts[:] = 9
    given.unpack_counts(packed, counts, 1)
    given.finish(counts, 1, out)
    assert out.tobytes() == total_of([values], model.step).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_no_elements_have_no_bytes(name: str) -> None:
    given, nothing = quantiser(name), np.empty(0, np.float32)
    assert given.nbytes(0) == given.packed_nbytes(0, 3) == 0
    assert given.encode(nothing, nothing.copy(), np.empty(0, np.uint8)) == 0
    given.count_sum([np.empty(0, np.uint8)], np.empty(0, np.uint16))
    given.finish(np.empty(0, np.uint16), 1, nothing)


@pytest.mark.parametrize("name", NAMES)
def test_a_part_of_a_payload_has_the_counts_of_its_elements(name: str) -> None:
    given, rng = quantiser(name), np.random.default_rng(1)
    count, start = 5 * given.unit + 3, 2 * given.unit
    payloads = [written(given, numbers(rng, count, False), np.zeros(count, np.float32))[0]
                for _ in range(3)]  # fmt: skip
    whole, part = np.empty(count, np.uint16), np.empty(given.unit, np.uint16)
    given.count_sum(payloads, whole)
    given.count_sum([each[given.nbytes(start) :] for each in payloads], part)
    assert np.array_equal(part, whole[start : start + given.unit])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("senders", [5, 15, 16, 127, 128, 255, 256, 300])
def test_counts_of_many_senders(name: str, senders: int) -> None:
    given, rng = quantiser(name, 0.1), np.random.default_rng(senders)
    chosen = [MODELS[name](0.1, 50) for _ in range(4)]
    all_sent, payloads = [], []
    for model in chosen:
        gradients = rng.standard_normal(50).astype(np.float32)
        # All codes are the greatest, or the least, in two columns.
        gradients[0], gradients[1] = 9, -9
        payload, _ = written(given, gradients, np.zeros(50, np.float32))
        payloads.append(payload)
        all_sent.append(model.push(gradients)[1])
    of = rng.integers(0, 4, senders)
    counts, out = np.empty(50, np.uint16), np.empty(50, np.float32)
    given.count_sum([payloads[i] for i in of], counts)
    packed = np.empty(given.packed_nbytes(50, senders), np.uint8)
    given.pack_counts(counts, packed, senders)
    counts[:] = 9
    given.unpack_counts(packed, counts, senders)
    given.finish(counts, senders, out)
    assert out.tobytes() == total_of([all_sent[i] for i in of], chosen[0].step).tobytes()
    assert abs(out[0]) == np.float32(senders * np.float64(np.float32(chosen[0].step)))


@pytest.mark.parametrize("name", NAMES)
def test_encode_allocates_a_tile_at_most(name: str) -> None:
    given = quantiser(name)
    gradients, residual = np.ones((2, 1 << 20), np.float32)
    payload = np.empty(given.nbytes(gradients.size), np.uint8)
    counts, out = np.empty(gradients.size, np.uint16), np.empty_like(gradients)
    packed = np.empty(given.packed_nbytes(gradients.size, 2), np.uint8)
    tracemalloc.start()
    given.encode(gradients, residual, payload)
    given.count_sum([payload, payload], counts)
    given.pack_counts(counts, packed, 2)
    given.unpack_counts(packed, counts, 2)
    given.finish(counts, 2, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < gradients.nbytes / 8


@pytest.mark.parametrize("name", NAMES)
def test_counts_of_the_most_senders_have_16_bits(name: str) -> None:
    codec = quantiser(name)
    assert codec.width(codec.most_senders) == 16
    assert (codec.most_senders + 1) * max(codec.levels) > 0xFFFF


def test_the_first_code_of_a_byte_has_its_most_significant_bits() -> None:
    assert levels_of_bytes(2, (1, 1, 0, 2))[0b11_10_01_00].tolist() == [2, 0, 1, 1]
    assert levels_of_bytes(1, (0, 1))[0b10000011].tolist() == [1, 0, 0, 0, 0, 0, 1, 1]
