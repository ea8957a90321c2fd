"""Layer 4, on one GPU: the kernels against those of the host, and against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclkv.kernels.device.kernels import DeviceKernels
from ncclkv.kernels.device.launch import launch
from ncclkv.kernels.device.sources import COPY, UPDATE
from tests.nccl import gpu
from tests.nccl.coding_cases import CodeCases, HalfCases, LargestCases
from tests.nccl.factoring_cases import FactoringCases
from tests.nccl.finite_cases import NonfiniteCases, SkipCases
from tests.nccl.gpu import need_gpu
from tests.nccl.kernel_cases import (
    HOST,
    STEP,
    ChecksumCases,
    CombineCases,
    CopyCases,
    MeasureCases,
    Stage,
    UpdateCases,
    any_bits,
    dtype_of,
    same_bits,
)
from tests.nccl.node_cases import NodeCases
from tests.sgd_steps import rows, segments_of, sgd

pytestmark = pytest.mark.limit(60)
DTYPES = ["bool", "int8", "int64", "float16", "bfloat16", "float32", "float64", "complex64"]
SHAPES: dict[str, Any] = {
    "contiguous": lambda x: x,
    "no dimensions": lambda x: x[0, 0, :1].reshape(()),
    "empty": lambda x: x[:, :0],
    "strided": lambda x: x[:, ::2, ::-1],
    "transposed": lambda x: x.transpose(2, 0, 1),
}


class GpuStage(Stage):
    """The kernels on the GPU."""

    def put(self, array: np.ndarray) -> Any:
        import cupy

        return cupy.asarray(array)

    def get(self, array: Any) -> np.ndarray:
        host: np.ndarray = array.get()
        return host

    def settle(self) -> None:
        import cupy

        cupy.cuda.get_current_stream().synchronize()


@pytest.fixture
def stage() -> Stage:
    need_gpu()
    return GpuStage(launch)


class TestCombine(CombineCases):
    @pytest.mark.parametrize("name", ["float32", "float16"])
    def test_values_in_any_strides_and_in_host_memory(self, stage: Stage, name: str) -> None:
        x = (np.arange(4 * 6 * 8) % 61).reshape(4, 6, 8).astype(dtype_of(name))
        device = stage.put(x)
        for shape in SHAPES.values():
            values = [shape(device), np.array(shape(x)), shape(device)]
            out = stage.poisoned(values[0].size, x.dtype)
            stage.kernels.combine(values, out, "sum")
            expected = 3 * np.array(shape(x)).astype(np.float64)
            assert np.array_equal(stage.get(out).astype(np.float64), expected.ravel())

    @pytest.mark.limit(120)
    def test_more_elements_than_32_bits_count(self, stage: Stage) -> None:
        import cupy

        size = 2**32 + 5
        if cupy.cuda.Device().mem_info[0] < 4 * size:
            pytest.skip("four arrays of 4 GiB do not fit into the free memory of this GPU")
        part, out = cupy.ones(size, np.int8), cupy.zeros(size, np.int8)
        stage.kernels.combine([part, part], out, "sum")
        assert int((out == 2).sum()) == size


class TestMeasure(MeasureCases):
    pass


class TestUpdate(UpdateCases):
    @pytest.mark.parametrize(("name", "digits"), [("float32", 24), ("float64", 53)])
    def test_against_numpy_in_float64(self, stage: Stage, name: str, digits: int) -> None:
        rng = np.random.default_rng(4)
        w, g, m = (rng.standard_normal(10**6).astype(name) for _ in range(3))
        device = [stage.put(x) for x in (w, g, m)]
        sgd(stage.kernels, *device, put=stage.put, **STEP)
        w, g, m = (x.astype(np.float64) for x in (w, g, m))
        change = np.clip(g * STEP["rescale"], -STEP["clip"], STEP["clip"])
        change += STEP["weight_decay"] * w
        m = STEP["momentum"] * m - STEP["learning_rate"] * change
        # Numbers below 8, and half a unit of the last place for each of up to six roundings.
        bound = 6 * 8 * 2.0**-digits
        np.testing.assert_allclose(stage.get(device[2]), m, rtol=0, atol=bound)
        np.testing.assert_allclose(stage.get(device[0]), w + m, rtol=0, atol=bound)
        assert stage.launched == [UPDATE["sgd", 1, name]]


class TestChecksums(ChecksumCases):
    @pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
    def test_values_in_any_strides_and_in_host_memory(self, stage: Stage, shape: Any) -> None:
        x = any_bits(np.random.default_rng(7), 4 * 6 * 8, "float32").reshape(4, 6, 8)
        arrays = [shape(stage.put(x)), np.array(shape(x)), shape(x)]
        sums = stage.get(stage.kernels.checksums(arrays))
        assert sums.tolist() == [HOST.checksums([shape(x)])[0]] * 3


class TestCodes(CodeCases):
    pass


class TestLargest(LargestCases):
    pass


class TestFactoring(FactoringCases):
    pass


class TestNodes(NodeCases):
    pass


class TestHalves(HalfCases):
    pass


class TestNonfinite(NonfiniteCases):
    pass


class TestSkip(SkipCases):
    pass


class TestCopy(CopyCases):
    @pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
    @pytest.mark.parametrize("name", DTYPES)
    @pytest.mark.parametrize("where", ["device", "host"])
    def test_pack_and_unpack(self, stage: Stage, where: str, name: str, shape: Any) -> None:
        x = any_bits(np.random.default_rng(5), 4 * 6 * 8, name).reshape(4, 6, 8)
        expected = np.array(shape(x))
        memory = stage.poisoned(expected.size + 2, x.dtype)
        before = stage.get(memory)
        stage.kernels.pack(shape(x if where == "host" else stage.put(x)), memory[1:-1])
        after = stage.get(memory)
        assert same_bits(after[1:-1], expected.ravel())
        assert after[[0, -1]].tobytes() == before[[0, -1]].tobytes()
        wanted = np.ones_like(x)
        target = np.ones_like(x) if where == "host" else stage.put(wanted)
        stage.kernels.unpack(memory[1:-1], shape(target))
        shape(wanted)[...] = expected
        written = target if where == "host" else stage.get(target)
        assert same_bits(written.ravel(), wanted.ravel())

    @pytest.mark.parametrize("name", ["float32", "float64"])
    @pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 2), (1, 6, 1)])
    def test_unpack_takes_a_value_of_a_key_s_own_shape(
        self, stage: Stage, shape: tuple[int, ...], name: str
    ) -> None:
        """Check a key without a bucket: its value is no flat slot yet."""
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        out = np.zeros(shape, name)
        target = stage.put(out)
        stage.kernels.unpack(stage.put(x), out)
        stage.kernels.unpack(stage.put(x), target)
        expected = x.reshape(shape).astype(name)
        assert np.array_equal(out, expected)
        assert np.array_equal(stage.get(target), expected)

    @pytest.mark.parametrize(
        ("name", "other"),
        [
            ("float32", "float16"),
            ("float32", "bfloat16"),
            ("bfloat16", "float32"),
            ("float64", "int32"),
            ("int64", "bool"),
            ("int32", "float64"),
        ],
    )
    @pytest.mark.parametrize("where", ["device", "host"])
    def test_unpack_casts_as_astype_does(
        self, stage: Stage, where: str, name: str, other: str
    ) -> None:
        x = np.array([0, 1.5, -2.75, 100, 3, 1 / 3]).astype(dtype_of(name))
        out = np.zeros((2, 3), dtype_of(other))
        target = out if where == "host" else stage.put(out)
        stage.kernels.unpack(stage.put(x), target)
        written = out if where == "host" else stage.get(target)
        assert same_bits(written.ravel(), x.astype(dtype_of(other)))

    def test_unpack_of_complex_numbers_into_others(self, stage: Stage) -> None:
        slot = stage.put(np.array([1 + 2j, 3j, 0], np.complex64))
        real, whether = stage.poisoned(3, np.dtype("float32")), stage.poisoned(3, np.dtype("bool"))
        with pytest.warns(match="discards the imaginary part"):
            stage.kernels.unpack(slot, real)
        stage.kernels.unpack(slot, whether)
        assert stage.get(real).tolist() == [1, 0, 0]
        assert stage.get(whether).tolist() == [True, True, False]

    def test_all_kinds_at_once(self, stage: Stage) -> None:
        x = np.arange(48, dtype=np.float32).reshape(6, 8)
        device = stage.put(x)
        values = [device, device.T, x, device[:, ::2], device + 1]
        hosts = [x, x.T, x, x[:, ::2], x + 1]
        slots = [stage.poisoned(value.size, x.dtype) for value in values]
        table = stage.kernels.pack_all(values, slots)
        assert (table.alone, stage.launched) == ([1, 2, 3], [COPY])
        outs = [stage.put(np.zeros(value.shape, np.float64)) for value in values]
        outs[2] = np.zeros(x.shape)
        outs[4] = stage.put(np.zeros(x.shape, np.float32))
        stage.kernels.unpack_all(slots, outs)
        for slot, out, value in zip(slots, outs, hosts, strict=True):
            assert np.array_equal(stage.get(slot), value.ravel())
            assert np.array_equal(out if out is outs[2] else stage.get(out), value)

    def test_a_value_in_host_memory_may_be_changed_at_once(self, stage: Stage) -> None:
        value = np.arange(2**22, dtype=np.float32)
        slot = stage.poisoned(value.size, value.dtype)
        expected = value.copy()
        for _ in range(5):
            stage.kernels.pack(value, slot)
            value[:] = -1
            assert np.array_equal(stage.get(slot), expected)
            value[:] = expected

    def test_values_in_host_memory_are_held_until_they_are_copied(self, stage: Stage) -> None:
        import cupy

        busy = cupy.zeros(2**20, np.float32)
        slots = [stage.poisoned(2**16, busy.dtype) for _ in range(8)]
        for _ in range(100):
            busy += 1
        for number, slot in enumerate(slots):
            stage.kernels.pack(np.full(slot.size, number, slot.dtype), slot)
        for number, slot in enumerate(slots):
            assert (stage.get(slot) == number).all()

    def test_an_out_in_page_locked_memory_is_written_when_unpack_returns(
        self, stage: Stage
    ) -> None:
        """Check page-locked memory, to which CUDA copies without blocking the host."""
        import cupy

        slot = cupy.zeros(2**20, np.float32)
        out = np.frombuffer(cupy.cuda.alloc_pinned_memory(slot.nbytes), np.float32, slot.size)
        for _ in range(100):
            slot += 1
        stage.kernels.unpack(slot, out)
        assert (out == 100).all()

    def test_work_is_in_the_current_stream_and_is_not_waited_for(self, stage: Stage) -> None:
        import cupy

        kernels: DeviceKernels = stage.kernels
        value, slot = cupy.ones(1000, np.float32), cupy.zeros(1000, np.float32)
        busy = cupy.zeros(gpu.busy(2**28), np.float32)
        table = kernels.pack_all([value], [slot])
        kernels.combine([value, value], slot, "sum")
        sgd(kernels, slot, value, None, put=stage.put, **STEP)
        cupy.cuda.Device().synchronize()
        slot[:] = 0
        scalars, segments = stage.put(rows(**STEP | {"learning_rate": 0.0})), segments_of(0, 1000)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            for _ in range(200):
                busy += 1
            kernels.pack_all([value], [slot], table)
            kernels.combine([slot, value], slot, "sum")
            kernels.update("sgd", slot, value, (), scalars, segments)
            end = stream.record()
            assert not end.done, "a call has waited for the stream"
        stream.synchronize()
        assert stage.get(slot).tolist() == [2.0] * 1000
