"""Layer 3, without a device: results of the device's kernels, compiled as C++ for the host.

They run on CuPy's arrays over host memory; no arithmetic, compiler or memory of a device is tested.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ncclkv.kernels.device import encoding
from ncclkv.kernels.device.copies import plan_copies
from ncclkv.kernels.device.kernel_args import (
    COMBINATION,
    COMBINED_TOGETHER,
    COPY_BYTES,
    THREADS,
    UPDATED_ELEMENTS,
    new,
    plan_updates,
)
from ncclkv.kernels.device.sources import COMBINE, COPY, UPDATE
from tests.nccl.coding_cases import CodeCases, HalfCases, LargestCases
from tests.nccl.factoring_cases import FactoringCases
from tests.nccl.finite_cases import NonfiniteCases, SkipCases
from tests.nccl.kernel_cases import (
    STEP,
    ChecksumCases,
    CombineCases,
    CopyCases,
    MeasureCases,
    Stage,
    UpdateCases,
)
from tests.nccl.kernels_as_cpp import COMPILER, CppLauncher
from tests.nccl.node_cases import NodeCases
from tests.sgd_steps import segments_of, sgd

cupy = pytest.importorskip("cupy", reason="layer 3 needs CuPy: pip install 'ncclkv[cuda12]'")

pytestmark = pytest.mark.skipif(
    COMPILER is None, reason="running the kernels on the host needs a C++ compiler: install g++"
)


class HostMirror:
    """`ncclkv.kernels.device.memory.Mirror` of memory that the host can read."""

    def __init__(self, array: Any) -> None:
        self._array = array
        memory = (ctypes.c_char * array.nbytes).from_address(array.data.ptr)
        self._seen = np.frombuffer(memory, array.dtype)
        self.host = np.zeros_like(self._seen)

    def update(self) -> None:
        """Copy what the kernels have written so far."""
        self.host[...] = self._seen


class HostStage(Stage):
    """The kernels as C++, on host memory that CuPy takes for a device's."""

    def put(self, array: np.ndarray) -> Any:
        owned = np.array(array)
        memory = cupy.cuda.UnownedMemory(owned.ctypes.data, max(owned.nbytes, 1), owned, 0)
        return cupy.ndarray(owned.shape, owned.dtype, cupy.cuda.MemoryPointer(memory, 0))

    def get(self, array: Any) -> np.ndarray:
        memory = (ctypes.c_char * array.nbytes).from_address(array.data.ptr)
        return np.frombuffer(memory, array.dtype).reshape(array.shape)


@pytest.fixture(scope="module")
def launcher() -> CppLauncher:
    return CppLauncher()


@pytest.fixture
def stage(launcher: CppLauncher, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = HostStage(launcher)
    # Kernels allocate their scratch memory by CuPy, from a device.
    monkeypatch.setattr(cupy, "empty", lambda shape, dtype: stage.poisoned(*shape, np.dtype(dtype)))
    monkeypatch.setattr(encoding, "Mirror", HostMirror)
    monkeypatch.setattr(cupy, "zeros", lambda size, dtype: stage.put(np.zeros(size, dtype)))
    return stage


class TestCombine(CombineCases):
    pass


class TestUpdate(UpdateCases):
    pass


class TestMeasure(MeasureCases):
    pass


class TestNonfinite(NonfiniteCases):
    pass


class TestSkip(SkipCases):
    pass


class TestCopy(CopyCases):
    pass


class TestChecksums(ChecksumCases):
    pass


class TestHalves(HalfCases):
    pass


class TestCodes(CodeCases):
    pass


class TestLargest(LargestCases):
    pass


class TestFactoring(FactoringCases):
    pass


class TestNodes(NodeCases):
    pass


FAR = 2**36
"""Distance in bytes that takes more than 32 bits, also in elements of 8 bytes."""


def before(array: np.ndarray) -> int:
    """Return the address so far before an array; below 0 it wraps around, as a pointer does."""
    return int((array.ctypes.data - FAR) % 2**64)


def test_copies_reach_past_32_bits(launcher: CppLauncher) -> None:
    source = np.arange(COPY_BYTES + 9, dtype=np.uint32).view(np.uint8)
    out = np.zeros_like(source)
    # Only the last blocks of the copy are run; they begin at the arrays' addresses.
    begin = [np.array([before(x)], np.uint64) for x in (source, out)]
    ((blocks, argument, _),) = plan_copies(*begin, np.array([FAR + source.nbytes]))
    launcher.run(COPY, FAR // COPY_BYTES, blocks, argument)
    assert np.array_equal(out, source)


def test_combinations_reach_past_32_bits(launcher: CppLauncher) -> None:
    parts, out = np.arange(2 * THREADS, dtype=np.float64).reshape(2, -1), np.zeros(THREADS)
    argument = new(COMBINATION)
    argument["part"][:2] = [before(part) for part in parts]
    argument["out"] = before(out)
    argument["size"] = FAR // 8 + THREADS
    argument["count"] = 2
    argument["ends"] = 1
    blocks = FAR // 8 // (COMBINED_TOGETHER * THREADS) + 1
    launcher.run(COMBINE["float64", "sum"], blocks - 1, blocks, argument)
    assert np.array_equal(out, parts.sum(axis=0))


def test_segments_reach_past_32_bits(stage: Stage) -> None:
    weights, gradients = np.ones((2, 100))
    far = [
        SimpleNamespace(data=SimpleNamespace(ptr=before(x)), dtype=x.dtype)
        for x in (weights, gradients)
    ]
    begin = FAR // 8
    step = STEP | {"learning_rate": 1.0, "weight_decay": 0.0, "lr_mult": (1, 0.5)}
    segments = segments_of(begin, begin + 60, begin + 100)
    sgd(stage.kernels, *far, None, put=stage.put, segments=segments, wd_mult=(1, 1), **step)
    assert np.array_equal(weights, 1 - np.repeat([1 / 3, 1 / 3 * 0.5], [60, 40]))


def test_segments_of_one_array_may_be_longer_than_32_bits_tell(launcher: CppLauncher) -> None:
    weights, gradients = np.ones((2, UPDATED_ELEMENTS + 3))
    scalars = np.array([[1.0, 0.0, 0.0, 1.0, -1.0]])
    ((blocks, argument, _),) = plan_updates(segments_of(0, FAR // 8 + weights.size))
    argument["weights"] = before(weights)
    argument["gradients"] = before(gradients)
    argument["scalars"] = scalars.ctypes.data
    launcher.run(UPDATE["sgd", 0, "float64"], FAR // 8 // UPDATED_ELEMENTS, blocks, argument)
    assert not weights.any()
