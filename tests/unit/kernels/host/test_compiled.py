"""Kernels in C against those in NumPy: equal bits for all arrays and numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ncclkv.comm.diagnosis import call_ring
from ncclkv.comm.diagnosis.call_ring import CALLS, MASK, NBYTES
from ncclkv.kernels.host import HostKernels, compiled
from ncclkv.kernels.host.reduce import FlatReducer
from ncclkv.kernels.programs import PROGRAMS
from tests.harness.extent import examples
from tests.sgd_steps import segments_of, sgd

pytestmark = pytest.mark.usefixtures("in_c")

KERNELS = HostKernels()
REAL = ["float32", "float64"]
# Sizes around a tile of 1 KiB and around the release of the GIL, for both dtypes.
SIZES = [0, 1, 2, 3, 127, 128, 129, 255, 256, 257, 1000, 8191, 16387]
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 5e-324, 3.4e38, 1.7e308, 1.0, -1.0, 1 / 3]
NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 0.1, 0.9, 1 / 3, 1e-30, 1e30, 1e300])


@contextmanager
def _numpy_alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "active", False)
        yield


def _numbers(seed: int, dtype: str, size: int, offset: int = 0) -> np.ndarray:
    """Return special numbers of all magnitudes, `offset` bytes behind an aligned address."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(SPECIAL, size)
    drawn = rng.standard_normal(size) * 10.0 ** rng.integers(-12, 12, size)
    memory = np.zeros(size * np.dtype(dtype).itemsize + offset, np.uint8)
    array = memory[offset:].view(dtype)
    with np.errstate(over="ignore"):
        array[...] = np.where(rng.random(size) < 0.3, chosen, drawn)
    return array


def _bits(array: np.ndarray) -> bytes:
    """Return the bytes, with one bit pattern for all NaNs: either may be kept."""
    return np.where(np.isnan(array), np.nan, array).astype(array.dtype).tobytes()


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(REAL),
    st.sampled_from(SIZES),
    st.integers(1, 9),
    st.sampled_from(["sum", "avg"]),
    st.booleans(),
    st.integers(0, 15),
    st.integers(0, 8),
)
@example(0, "float32", 1000, 4, "sum", True, 1, 0)
def test_sums_have_numpys_bits(
    seed: int,
    dtype: str,
    size: int,
    count: int,
    op: str,
    stream: bool,
    offset: int,
    into: int,
) -> None:
    parts = [_numbers(seed + n, dtype, size, offset * (n % 2)) for n in range(count)]
    expected = np.zeros(size, dtype)
    with _numpy_alone():
        KERNELS.reduce(parts, expected, op)
    others = [part.copy() for part in parts]
    # The output is one of the parts, or another array if there is no part of that number.
    out = parts[into] if into < count else _numbers(seed, dtype, size, offset)
    FlatReducer(np.dtype(dtype), size, op)(parts, out, stream)
    assert _bits(out) == _bits(expected)
    for number, (part, other) in enumerate(zip(parts, others, strict=True)):
        assert number == into or part.tobytes() == other.tobytes()


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(REAL),
    st.sampled_from(SIZES),
    st.booleans(),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.sampled_from([None, 0.0, 1.0, 0.1, 1e30]),
    st.integers(0, 15),
)
@example(1, "float32", 1000, True, 0.1, 0.9, 1e-4, 1 / 3, 1.0, 0)
def test_steps_have_numpys_bits(
    seed: int,
    dtype: str,
    size: int,
    has_momenta: bool,
    rate: float,
    momentum: float,
    decay: float,
    rescale: float,
    clip: float | None,
    offset: int,
) -> None:
    weights, gradients, momenta = (_numbers(seed + n, dtype, size, offset) for n in range(3))
    step = {"learning_rate": rate, "momentum": momentum, "weight_decay": decay}
    step |= {"rescale": rescale, "clip": clip}
    found = [weights.copy(), momenta.copy()]
    with _numpy_alone():
        expected = [weights.copy(), momenta.copy()]
        sgd(KERNELS, expected[0], gradients, expected[1] if has_momenta else None, **step)
    before = gradients.tobytes()
    sgd(KERNELS, weights, gradients, momenta if has_momenta else None, **step)
    assert _bits(weights) == _bits(expected[0])
    assert _bits(momenta) == _bits(expected[1] if has_momenta else found[1])
    assert gradients.tobytes() == before, "gradients were written"


VARIANTS = [(each.name, states) for each in PROGRAMS.values() for states in each.states]


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize(("name", "states"), VARIANTS)
@settings(deadline=None, max_examples=examples(60))
@given(
    st.integers(0, 2**32),
    st.sampled_from(SIZES),
    # As optimizers check them.
    st.lists(NUMBERS.filter(lambda x: x >= 0), min_size=10, max_size=10),
    st.tuples(
        st.sampled_from([0.0, 0.1, 1e-60]),
        st.sampled_from([1.0, -1.0, 1 / 3]),
        st.sampled_from([-1.0, 0.0, 1.0, 0.1]),
    ),
    st.integers(0, 15),
)
def test_programs_have_numpys_bits(
    name: str,
    states: int,
    dtype: str,
    seed: int,
    size: int,
    numbers: list[float],
    common: tuple[float, float, float],
    offset: int,
) -> None:
    arrays = [_numbers(seed + n, dtype, size, offset) for n in range(2 + states)]
    if name == "adamax":
        # Its maximum is never -0: of zeros of both signs NumPy may return either.
        np.abs(arrays[3], out=arrays[3])
    own = len(PROGRAMS[name].scalars) - len(common)
    row, segments = np.array([[*numbers[:own], *common]]), segments_of(0, size)
    expected, gradients = [array.copy() for array in arrays], arrays[1].tobytes()
    for _ in range(2):
        with _numpy_alone():
            KERNELS.update(name, *expected[:2], expected[2:], row, segments)
        KERNELS.update(name, *arrays[:2], arrays[2:], row, segments)
    for array, wanted in zip(arrays, expected, strict=True):
        assert _bits(array) == _bits(wanted)
    assert arrays[1].tobytes() == gradients, "gradients were written"


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(0, 70), st.integers(0, 70), st.booleans())
def test_copies_at_any_addresses(size: int, to: int, start: int, stream: bool) -> None:
    memory = np.full(size + to + 1, 255, np.uint8)
    source = np.arange(size + start, dtype=np.uint8)[start:]
    assert compiled.copy(memory[to : to + size], source, stream)
    assert memory[to : to + size].tobytes() == source.tobytes()
    assert (memory[:to] == 255).all()
    assert memory[-1] == 255


@pytest.mark.parametrize("stream", [False, True])
def test_long_copies_and_sums(stream: bool) -> None:
    parts = [np.arange(1 << 20, dtype=np.float32) % (n + 7) for n in range(3)]
    out, other = np.zeros((2, 1 << 20), np.float32)
    assert compiled.total(parts, out, False, stream)
    assert compiled.copy(other, out, stream)
    assert np.array_equal(other, sum(parts))


def _strided(dtype: str = "float32") -> np.ndarray:
    return np.ones(12, dtype)[::2]


@pytest.mark.parametrize(
    "other",
    [_strided(), np.ones(6), np.ones(6, ">f4"), np.ones(6, np.int32), np.ones(6, np.float16)],
    ids=["strided", "float64", "other byte order", "int32", "float16"],
)
def test_other_arrays_are_left_to_numpy_untouched(other: np.ndarray) -> None:
    array, out = np.ones(6, np.float32), np.full(6, 7, np.float32)
    assert not compiled.total([array, other], out, False, False)
    assert not compiled.update("sgd", out, other, (), ROW, ALL_SIX, None)
    assert not compiled.update("sgd", out, array, (other,), ROW, ALL_SIX, None)
    assert not compiled.update("sgd", out, array, (), ROW, ALL_SIX, other)
    assert out.tolist() == [7] * 6
    before = other.copy()
    assert not compiled.total([array], other, False, False) or other.dtype == np.float64
    assert np.array_equal(other, before)


def test_a_strided_copy_is_left_to_numpy() -> None:
    array, target = np.arange(6, dtype=np.float32), _strided()
    assert not compiled.copy(target, array, True)
    assert not compiled.copy(array, target, False)
    assert target.tolist() == [1] * 6


SIX, FIVE = np.ones(6, np.float32), np.ones(5, np.float32)
WORDS = st.integers(0, MASK)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(1, 2**40), WORDS, WORDS, WORDS)
def test_a_call_is_appended_as_by_python(number: int, text: int, term: int, digest: int) -> None:
    pages = [memoryview(bytearray(NBYTES)) for _ in range(2)]
    functions = call_ring.append_call, compiled.append_call
    before = time.monotonic_ns()
    first, second = (
        function(page, number, text, term, digest)
        for function, page in zip(functions, pages, strict=True)
    )
    assert first == second
    words = [page.cast("q") for page in pages]
    position = 1 + number % CALLS * 3 + 2
    assert before <= words[0][position] <= words[1][position] <= time.monotonic_ns()
    words[1][position] = words[0][position]
    assert pages[0] == pages[1]


def test_a_call_has_the_time_that_is_set(clock_set_in_c: Callable[[int | None], None]) -> None:
    page = memoryview(bytearray(NBYTES))
    for number, time_set in enumerate((0, 5, 2**63 - 1), 1):
        clock_set_in_c(time_set)
        compiled.append_call(page, number, 0, 0, 0)
        assert page.cast("q")[1 + number * 3 + 2] == time_set
    clock_set_in_c(None)
    before = time.monotonic_ns()
    compiled.append_call(page, 4, 0, 0, 0)
    assert before <= page.cast("q")[1 + 4 * 3 + 2] <= time.monotonic_ns()


def test_a_clock_is_set_to_a_time_alone(clock_set_in_c: Callable[[int | None], None]) -> None:
    with pytest.raises(ValueError, match="a clock of -1 nanoseconds"):
        clock_set_in_c(-1)
    wrong: Any = "noon"
    with pytest.raises(TypeError, match="int"):
        clock_set_in_c(wrong)


PAGE = memoryview(bytearray(8 + 24 * CALLS))


@pytest.mark.parametrize(
    ("page", "error", "words"),
    [
        (PAGE[:-1], ValueError, "a page that is too short"),
        (memoryview(bytearray(len(PAGE) + 8))[1:-7], ValueError, "or at an odd address"),
        (PAGE.toreadonly(), BufferError, "not writable"),
        ("page", TypeError, "bytes-like"),
    ],
)
def test_calls_are_appended_to_pages_alone(page: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        compiled.append_call(page, 1, 0, 0, 0)
    with pytest.raises(ValueError, match="a call of index 0"):
        compiled.append_call(PAGE, 0, 0, 0, 0)
    assert not any(PAGE)


HALF = np.ones(6, np.float16)
ROW, ALL_SIX = np.ones((1, 5)), np.array([0, 6])
LOCKED = np.ones(6, np.float32)
LOCKED.flags.writeable = False


@pytest.mark.parametrize(
    ("function", "arguments", "error", "words"),
    [
        ("total", ([SIX, FIVE], SIX, False, False), ValueError, "a part of 20 bytes, where 24"),
        ("total", ([FIVE], SIX, False, False), ValueError, "a part of 20 bytes"),
        ("total", ([], SIX, False, False), ValueError, "there are no parts"),
        ("total", ([SIX], LOCKED, False, False), ValueError, "read-only"),
        ("total", (SIX, SIX, False, False), ValueError, "a part of 4 bytes, where 24"),
        ("total", ([SIX, "six"], SIX, False, False), TypeError, "bytes-like"),
        ("total", (6, SIX, False, False), TypeError, "not iterable"),
        ("total", ([SIX], SIX, False), TypeError, "total takes 4 arguments, and was given 3"),
        ("copy", (SIX, FIVE, False), ValueError, "a source of 20 bytes, where 24"),
        ("copy", (LOCKED, SIX, True), ValueError, "read-only"),
        ("copy", (SIX, None, True), TypeError, "bytes-like"),
        ("copy", (SIX, SIX), TypeError, "copy takes 3 arguments, and was given 2"),
    ],
)
def test_wrong_calls_raise(
    function: str, arguments: tuple[Any, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        getattr(compiled, function)(*arguments)
    assert (SIX == 1).all()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("sgd", SIX, FIVE, (), ROW, ALL_SIX), ValueError, "gradients of 20 bytes"),
        (("sgd", SIX, SIX, (FIVE,), ROW, ALL_SIX), ValueError, "a state of 20 bytes"),
        (("sgd", LOCKED, SIX, (), ROW, ALL_SIX), ValueError, "read-only"),
        (("sgd", SIX, SIX, (LOCKED,), ROW, ALL_SIX), ValueError, "read-only"),
        (("sgd", SIX, SIX, (), ROW.astype("f4"), ALL_SIX), ValueError, "not 1 rows of 5 float64"),
        (("sgd", SIX, SIX, (), ROW[:, :4].copy(), ALL_SIX), ValueError, "not 1 rows of 5"),
        (("sgd", SIX, SIX, (), ROW, np.array([0, 3, 6])), ValueError, "not 2 rows of 5"),
        (("sgd", SIX, SIX, (), ROW, np.array([0, 7])), ValueError, "not in 6 elements"),
        (("sgd", SIX, SIX, (), ROW, np.array([-1, 6])), ValueError, "not in 6 elements"),
        (("sgd", SIX, SIX, (), ROW, np.array([5, 4])), ValueError, "segment 0 ends before"),
        (("sgd", SIX, SIX, (), ROW, ALL_SIX.astype("i4")), ValueError, "not in 6 elements"),
        (("sgd", SIX, SIX, (), ROW, ALL_SIX.astype("f8")), ValueError, "not in 6 elements"),
        (("sgd", SIX, SIX, SIX, ROW, ALL_SIX), ValueError, "no program sgd of 6 states"),
        (("sgdd", SIX, SIX, (), ROW, ALL_SIX), ValueError, "no program sgdd of 0 states"),
        ((1, SIX, SIX, (), ROW, ALL_SIX), TypeError, "bad argument type"),
        (("sgd", SIX), TypeError, "update takes 7 arguments, and was given 3"),
        (("sgd", HALF, HALF[:5], (), ROW, ALL_SIX), ValueError, "gradients of 10 bytes, where 12"),
        (("sgd", HALF, HALF, (FIVE,), ROW, ALL_SIX), ValueError, "a state of 20 bytes, where 24"),
        (("sgd", HALF, HALF, (), ROW, np.array([0, 7])), ValueError, "not in 6 elements"),
    ],
)
def test_wrong_updates_raise(
    arguments: tuple[Any, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        compiled.update(*arguments, None)
    assert (SIX == 1).all()
    assert (HALF == 1).all()


@pytest.mark.parametrize("setting", ["", "1", "0"])
def test_an_environment_variable_turns_c_off(setting: str) -> None:
    program = "from ncclkv.kernels.host import HostKernels; print(HostKernels())"
    environment = {**os.environ, "NCCLKV_COMPILED": setting}
    said = subprocess.check_output([sys.executable, "-c", program], text=True, env=environment)
    assert said == ("HostKernels(NumPy)\n" if setting == "0" else "HostKernels(C and NumPy)\n")


def test_without_c_everything_works() -> None:
    # A None in sys.modules makes the import fail, as for a package without the extension.
    program = (
        "import sys; sys.modules['ncclkv.kernels.host._compiled'] = None\n"
        "import numpy as np, ncclkv\n"
        "from ncclkv.kernels.host import HostKernels\n"
        "with ncclkv.create('local') as kv:\n"
        "    kv.init('w', np.zeros(3, np.float32))\n"
        "    kv.set_optimizer(ncclkv.optimizer.SGD(learning_rate=0.5, momentum=0.5))\n"
        "    kv.push('w', [np.ones(3, np.float32), np.ones(3, np.float32)])\n"
        "    print(HostKernels(), kv.pull('w'))\n"
        "from ncclkv.kernels.host import compiled\n"
        "compiled.set_clock(5)"
    )
    environment = {**os.environ, "NCCLKV_COMPILED": "1"}
    said = subprocess.check_output([sys.executable, "-c", program], text=True, env=environment)
    assert said == "HostKernels(NumPy) [-1. -1. -1.]\n"


def test_c_has_every_program() -> None:
    array, rows = np.ones(0, np.float32), np.ones((0, 0))
    for program in PROGRAMS.values():
        for states in program.states:
            assert compiled.update(
                program.name, array, array, (array,) * states, rows, np.zeros(1, np.int64), None
            )
            given = array, array, (array,) * states, np.ones((1, 9)), np.zeros(1, int)
            with pytest.raises(ValueError, match=f"0 rows of {len(program.scalars)} float64"):
                compiled.update(program.name, *given, None)
