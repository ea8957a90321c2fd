"""Cases of the kernels of every device: they find NaN and infinity, and skip flagged updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclkv.kernels.device.kernel_args import COPY_BYTES
from ncclkv.kernels.device.launch import THREADS
from ncclkv.kernels.device.sources import NONFINITE
from tests.nccl.kernel_cases import HOST, STEP, UPDATED, Stage, any_bits, dtype_of, same_bits
from tests.sgd_steps import segments_of, sgd


def finfo(dtype: np.dtype[Any]) -> Any:
    """Return the limits of a floating dtype, from NumPy, or from ml_dtypes for bfloat16."""
    if dtype.name != "bfloat16":
        return np.finfo(dtype)
    return pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes").finfo(dtype)


class NonfiniteCases:
    """Cases of `find_nonfinite`."""

    def found(self, stage: Stage, array: np.ndarray, offset: int = 0) -> int:
        """Return the value of a flag that was 0 before the kernel."""
        flag = stage.put(np.zeros(3, np.int32))
        stage.kernels.find_nonfinite(stage.put(array)[offset:], flag[1:2])
        left, value, right = stage.get(flag)
        assert (left, right) == (0, 0)
        return int(value)

    @pytest.mark.parametrize("name", [*NONFINITE, "complex64", "complex128"])
    @pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "unaligned"])
    def test_every_element_is_searched(self, stage: Stage, name: str, offset: int) -> None:
        size = 16 * THREADS + 37
        numbers = np.ones(size, dtype_of(name))
        bad = [np.nan, np.inf, -np.inf]
        if name.startswith("complex"):
            bad += [complex(0, np.nan), complex(np.inf, 0)]
        assert self.found(stage, numbers, offset) == 0
        for index, where in enumerate([offset, 1, 2, 3, 100, 2 * THREADS, size - 2, size - 1]):
            wrong = numbers.copy()
            wrong[where] = bad[index % len(bad)]
            assert self.found(stage, wrong, offset) == 1
        wrong = numbers.copy()
        wrong[0] = np.nan
        assert self.found(stage, wrong, 1) == 0

    @pytest.mark.parametrize("name", NONFINITE)
    def test_finite_are_the_largest_and_the_smallest(self, stage: Stage, name: str) -> None:
        info = finfo(dtype_of(name))
        numbers = [info.max, info.min, info.smallest_subnormal, info.tiny, 0.0, -0.0]
        # Numbers of one sign, whose sum would not be finite.
        for each in (numbers, [info.max] * 100):
            assert self.found(stage, np.array(each, dtype_of(name))) == 0

    @pytest.mark.parametrize("name", NONFINITE)
    def test_every_finite_bit_pattern_is_finite(self, stage: Stage, name: str) -> None:
        rng = np.random.default_rng(8)
        for number in any_bits(rng, 200, name):
            expected = not np.isfinite(np.float64(number))
            assert self.found(stage, np.array([number, number])) == expected

    @pytest.mark.parametrize("name", ["bool", "int8", "uint16", "int32", "uint64"])
    def test_whole_numbers_are_finite(self, stage: Stage, name: str) -> None:
        numbers = np.frombuffer(b"\xff" * 64, dtype_of("uint8" if name == "bool" else name))
        assert self.found(stage, numbers.astype(dtype_of(name))) == 0
        assert stage.launched == []

    def test_a_flag_gathers_what_is_found(self, stage: Stage) -> None:
        flag = stage.put(np.zeros(1, np.int32))
        for number, expected in ((1.0, 0), (np.inf, 1), (1.0, 1)):
            stage.kernels.find_nonfinite(stage.put(np.full(9, number, np.float32)), flag)
            assert stage.get(flag).tolist() == [expected]


class SkipCases:
    """Cases of `update` and `assign` with a flag in memory."""

    @pytest.mark.parametrize("name", UPDATED)
    @pytest.mark.parametrize("moving", [False, True], ids=["plain", "momentum"])
    def test_a_step_is_skipped_as_memory_says(self, stage: Stage, name: str, moving: bool) -> None:
        """Check that the kernel reads the flag when it runs."""
        rng = np.random.default_rng(7)
        weights, gradients = (rng.standard_normal(300).astype(dtype_of(name)) for _ in range(2))
        momenta = np.zeros(300, np.float64 if name == "float64" else np.float32)
        device = [stage.put(array) for array in (weights, gradients, momenta)]
        dw, dg, dm = device
        for flag in (1, 0, -1, 2, 0):
            if not flag:
                sgd(HOST, weights, gradients, momenta if moving else None, **STEP)
            skip = stage.put(np.array([flag], np.int32))
            sgd(stage.kernels, dw, dg, dm if moving else None, put=stage.put, skip=skip, **STEP)
            for array, expected in zip(device, (weights, gradients, momenta), strict=True):
                assert same_bits(stage.get(array), expected)
            assert stage.get(skip).tolist() == [flag]

    def test_a_step_without_a_flag_is_made(self, stage: Stage) -> None:
        """Check that cached segments keep no flag of an earlier launch."""
        segments = segments_of(0, 9)
        weights, gradients = np.ones(9, np.float32), np.ones(9, np.float32)
        device = [stage.put(array) for array in (weights, gradients)]
        given = {"put": stage.put, "segments": segments, **STEP}
        sgd(stage.kernels, *device, None, skip=stage.put(np.ones(1, np.int32)), **given)
        assert same_bits(stage.get(device[0]), weights)
        sgd(HOST, weights, gradients, None, **STEP)
        sgd(stage.kernels, *device, None, **given)
        assert same_bits(stage.get(device[0]), weights)

    @pytest.mark.parametrize("name", ["bool", "int8", "bfloat16", "float32", "complex128"])
    def test_a_sum_is_assigned_or_not(self, stage: Stage, name: str) -> None:
        rng = np.random.default_rng(9)
        total, weights = (any_bits(rng, COPY_BYTES // 2 + 5, name) for _ in range(2))
        given, device = stage.put(total), stage.put(weights)
        for flag, expected in ((1, weights), (-1, weights), (0, total)):
            stage.kernels.assign(given, device, stage.put(np.array([flag], np.int32)))
            assert same_bits(stage.get(device), expected)

    def test_what_is_copied_without_a_flag_is_copied(self, stage: Stage) -> None:
        """Check that cached tables keep no flag of an earlier launch."""
        ones, slots = [stage.put(np.ones(9))], [stage.put(np.zeros(9))]
        table = stage.kernels.pack_all(ones, slots)
        for flag, expected in ((0, 2.0), (1, 2.0)):
            skip = stage.put(np.array([flag], np.int32))
            stage.kernels.assign(stage.put(np.full(9, 2.0)), slots[0], skip)
            assert stage.get(slots[0]).tolist() == [expected] * 9
        assert stage.kernels.pack_all(ones, slots, table) is table
        assert stage.get(slots[0]).tolist() == [1.0] * 9
