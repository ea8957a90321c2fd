"""fp16 and bf16 against plain models: NumPy's float16, and ml_dtypes' bfloat16."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkv.compress.half import BF16, FP16, TILE, Half
from ncclkv.kernels.host.reduce import reduce
from tests.codecs import numbers, same, zeros
from tests.harness.extent import examples

pytestmark = pytest.mark.usefixtures("in_numpy_and_c")

CODECS: dict[str, type[Half]] = {"fp16": FP16, "bf16": BF16}
DTYPES = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
NAMES = [*CODECS]
PUSHES = 30


def rounded(name: str, values: np.ndarray) -> np.ndarray:
    """Return numbers in 16 bits, by way of float32."""
    with np.errstate(all="ignore"):
        return values.astype(np.float32).astype(DTYPES[name])


def wide(values: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return values.astype(np.float32)


def decoded(codec: Half, payload: np.ndarray, dtype: type = np.float32) -> np.ndarray:
    out = np.empty(payload.size, dtype)
    codec.decode(payload, out)
    return out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_number_of_16_bits_is_sent_as_it_is(name: str, dtype: type) -> None:
    codec, words = CODECS[name](), np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        values = wide(words.view(DTYPES[name])).astype(dtype)
    for payload in (np.empty(words.size, DTYPES[name]), np.empty(words.size, np.uint16)):
        if payload.dtype == np.uint16 and name == "fp16":
            continue
        codec.encode(values, None, payload)
        assert same(decoded(codec, payload), wide(values))
        is_nan = np.isnan(values)
        assert payload[~is_nan].tobytes() == words[~is_nan].tobytes()
        found = decoded(codec, payload, np.float64)
        assert found.dtype == np.float64
        assert same(wide(found), wide(values))


@pytest.mark.parametrize("name", NAMES)
def test_the_payload_s_dtype_is_that_of_its_name(name: str) -> None:
    assert CODECS[name].wire_dtype == DTYPES[name].name


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=examples(25))
@given(st.integers(0, 2**32), st.integers(1, 70) | st.just(TILE + 1), st.booleans(),
       st.integers(0, 3))  # fmt: skip
def test_pushes_with_error_feedback_are_those_of_the_model(
    name: str, seed: int, count: int, special: bool, offset: int
) -> None:
    rng, codec = np.random.default_rng(seed), CODECS[name](error_feedback=True)
    residual, model = zeros(count, offset), np.zeros(count, np.float32)
    payload = np.empty(count, DTYPES[name])
    for _ in range(PUSHES if count < 1000 else 3):
        gradients = numbers(rng, count, special, offset)
        gradients.flags.writeable = False
        codec.encode(gradients, residual, payload)
        with np.errstate(all="ignore"):
            total = model + gradients
            sent = rounded(name, total)
            model = np.where(np.isfinite(wide(sent)), total - wide(sent), np.float32(0))
        assert same(wide(payload), wide(sent))
        assert same(residual, model)


@pytest.mark.parametrize("name", NAMES)
def test_all_that_is_pushed_is_sent_in_the_end(name: str) -> None:
    """A small part of each gradient would be lost without the residual."""
    codec, residual = CODECS[name](error_feedback=True), np.zeros(1, np.float32)
    payload, total = np.empty(1, DTYPES[name]), np.zeros(1)
    for _ in range(PUSHES):
        codec.encode(np.array([1 + 2.0**-12], np.float32), residual, payload)
        total += wide(payload)
    assert total + residual == PUSHES * (1 + 2.0**-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_is_not_finite_is_sent_once(name: str, bad: float) -> None:
    codec, residual = CODECS[name](error_feedback=True), np.full(2, 0.25, np.float32)
    payload = np.empty(2, DTYPES[name])
    codec.encode(np.array([bad, 0], np.float32), residual, payload)
    assert np.array_equal(wide(payload), np.array([bad, 0.25]), equal_nan=True)
    assert residual.tolist() == [0, 0]
    codec.encode(np.ones(2, np.float32), residual, payload)
    assert wide(payload).tolist() == [1, 1]


def test_numbers_beyond_float16_s_become_infinite_and_those_of_bfloat16_do_not() -> None:
    given = np.array([65519, 65520, -1e6, 3e38], np.float32)
    half, brain = np.empty(4, np.float16), np.empty(4, DTYPES["bf16"])
    FP16().encode(given, None, half)
    BF16().encode(given, None, brain)
    assert half.tolist() == [65504, np.inf, -np.inf, np.inf]
    assert np.isfinite(wide(brain)).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_sum_of_ranks_is_rounded_once(name: str, op: str, ranks: int) -> None:
    codec, rng = CODECS[name](), np.random.default_rng(ranks)
    given = [numbers(rng, 3000, special=True) for _ in range(ranks)]
    given[0][0] = given[-1][0] = 6e4  # whose sum of float16 is infinite, and whose average is not
    payloads = [np.empty(3000, DTYPES[name]) for _ in range(ranks)]
    for each, payload in zip(given, payloads, strict=True):
        codec.encode(each, None, payload)
    reduce(payloads, payloads[0], op)
    with np.errstate(all="ignore"):
        total = wide(rounded(name, given[0]))
        for each in given[1:]:
            total = total + wide(rounded(name, each))
        if op == "avg":
            total = total / np.float32(ranks)
        expected = wide(rounded(name, total))
    found = decoded(codec, payloads[0])
    assert same(found, expected)
    assert np.isinf(found[0]) == (name == "fp16" and op == "sum" and ranks > 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("feedback", [False, True])
def test_float64_goes_through_float32(name: str, feedback: bool) -> None:
    # Above the middle of two words in float64, and the middle itself in float32.
    middle = 1 + (2.0**-11 if name == "fp16" else 2.0**-8)
    given = np.array([middle + 2.0**-40, 1e300])
    payload = np.empty(2, DTYPES[name])
    residual = np.zeros(2, np.float32) if feedback else None
    CODECS[name](feedback).encode(given, residual, payload)
    assert wide(payload).tolist() == [1, np.inf]


@pytest.mark.parametrize("name", NAMES)
def test_no_array_of_the_bucket_s_size_is_allocated(name: str) -> None:
    gradients, residual = np.ones((2, 1 << 20), np.float32)
    payload = np.empty(gradients.size, np.uint16 if name == "bf16" else np.float16)
    codec = CODECS[name](error_feedback=True)
    tracemalloc.start()
    codec.encode(gradients, residual, payload)
    codec.encode(gradients, None, payload)
    codec.decode(payload, gradients)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < gradients.nbytes / 8


@pytest.mark.parametrize("name", NAMES)
def test_no_elements_are_no_error(name: str) -> None:
    nothing = np.empty(0, np.float32)
    payload = np.empty(0, np.uint16 if name == "bf16" else np.float16)
    CODECS[name]().encode(nothing, None, payload)
    CODECS[name](True).encode(nothing, nothing.copy(), payload)
    CODECS[name]().decode(payload, nothing)
