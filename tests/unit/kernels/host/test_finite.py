"""Host kernels that find NaN and infinity, and kernels that obey the flag."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclkv.kernels.host import HostKernels
from ncclkv.kernels.host.chunks import CHUNK_BYTES
from tests.nccl.finite_cases import NonfiniteCases, SkipCases
from tests.nccl.kernel_cases import Stage


class HostStage(Stage):
    """The shared cases in host memory."""

    def __init__(self) -> None:
        self.launched = []
        self.kernels: Any = HostKernels()

    def put(self, array: np.ndarray) -> Any:
        return np.array(array)

    def get(self, array: Any) -> np.ndarray:
        return np.array(array)


@pytest.fixture
def stage() -> Stage:
    return HostStage()


class TestNonfinite(NonfiniteCases):
    @pytest.mark.parametrize("name", ["float16", "float32", "float64", "complex64"])
    def test_every_chunk_is_searched(self, stage: Stage, name: str) -> None:
        pieces = 3 * CHUNK_BYTES // np.dtype(name).itemsize
        for where in (0, pieces // 2, pieces):
            numbers = np.ones(pieces + 1, name)
            assert self.found(stage, numbers) == 0
            numbers[where] = np.nan
            assert self.found(stage, numbers) == 1

    def test_an_empty_array_is_finite(self, stage: Stage) -> None:
        assert self.found(stage, np.empty(0, np.float16)) == 0


class TestSkip(SkipCases):
    pass
