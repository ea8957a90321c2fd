"""Cases of the device's kernels on any memory: the results of the host's kernels, bit for bit."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ncclkv.kernels.base import Kernels, Measured
from ncclkv.kernels.device import kernels as device_kernels
from ncclkv.kernels.device.kernel_args import (
    COPY_BYTES,
    MEASURED_ELEMENTS,
    PARTS,
    PIECES,
    SUMMED_BYTES,
    UPDATED_ELEMENTS,
)
from ncclkv.kernels.device.kernels import DeviceKernels
from ncclkv.kernels.device.launch import Launch
from ncclkv.kernels.device.sources import CHECKSUM, COMBINE, COPY, UPDATE, KernelSource
from ncclkv.kernels.host import HostKernels
from ncclkv.kernels.programs import PROGRAMS
from tests.harness.extent import some_or_all
from tests.sgd_steps import segments_of, sgd

HOST: Kernels = HostKernels()
UPDATED = ("float16", "bfloat16", "float32", "float64")
"""Dtypes of weights."""
POISON = 0xA5
"""Byte that occurs in no result."""


class Stage:
    """Kernels, copies to and from their memory, and a list of their launches."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self.launched: list[KernelSource] = []
        self.kernels = DeviceKernels(self._record)

    def _record(self, program: KernelSource, blocks: int, argument: np.ndarray) -> None:
        if blocks:
            self.launched.append(program)
        self._launch(program, blocks, argument)

    def put(self, array: np.ndarray) -> Any:
        """Return a copy of a contiguous array in the kernels' memory."""
        raise NotImplementedError

    def get(self, array: Any) -> np.ndarray:
        """Return the content of a contiguous array in the kernels' memory."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait for what was launched."""

    def poisoned(self, size: int, dtype: np.dtype[Any]) -> Any:
        """Return an array full of `POISON`."""
        return self.put(np.full(size * dtype.itemsize, POISON, np.uint8).view(dtype))


@cache
def dtype_of(name: str) -> np.dtype[Any]:
    if name != "bfloat16":
        return np.dtype(name)
    reason = "kernels for bfloat16 need ml_dtypes: pip install ml_dtypes"
    return np.dtype(pytest.importorskip("ml_dtypes", reason=reason).bfloat16)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two arrays have equal bits; all NaNs count as equal."""
    if a.dtype.kind == "c":
        a, b = a.view(a.real.dtype), b.view(b.real.dtype)
    with np.errstate(invalid="ignore"):
        a_is_nan, b_is_nan = a != a, b != b
    return np.array_equal(a_is_nan, b_is_nan) and a[~a_is_nan].tobytes() == b[~b_is_nan].tobytes()


def any_bits(rng: np.random.Generator, size: int, name: str) -> np.ndarray:
    """Return numbers of every kind: NaN, infinities and subnormal numbers included."""
    dtype = dtype_of(name)
    if name == "bool":
        return rng.integers(0, 2, size).astype(bool)
    return np.frombuffer(rng.bytes(size * dtype.itemsize), dtype).copy()


class CombineCases:
    """Cases of `combine` and `reduce`."""

    @pytest.mark.parametrize("count", [1, 2, 5])
    @pytest.mark.parametrize(("name", "op"), COMBINE)
    def test_every_op_on_every_dtype(self, stage: Stage, name: str, op: str, count: int) -> None:
        rng = np.random.default_rng(count)
        # No element has zeros of both signs: the larger of them is undefined.
        parts = [any_bits(rng, 1000, name) for _ in range(count)]
        device = [stage.put(part) for part in parts]
        for which in ["combine", "reduce"]:
            out, expected = stage.poisoned(1000, dtype_of(name)), np.zeros(1000, dtype_of(name))
            getattr(HOST, which)(parts, expected, op)
            getattr(stage.kernels, which)(device, out, op)
            assert same_bits(stage.get(out), expected)

    @pytest.mark.parametrize("name", [n for n, op in COMBINE if op == "sum" and n != "bool"])
    @pytest.mark.parametrize("count", [1, 3, 200])
    def test_averages(self, stage: Stage, name: str, count: int) -> None:
        rng = np.random.default_rng(count)
        parts = [any_bits(rng, 300, name) for _ in range(count)]
        device = [stage.put(part) for part in parts]
        for which in ["combine", "reduce"]:
            out, expected = stage.poisoned(300, dtype_of(name)), np.zeros(300, dtype_of(name))
            getattr(HOST, which)(parts, expected, "avg")
            getattr(stage.kernels, which)(device, out, "avg")
            assert same_bits(stage.get(out), expected)

    @pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "int8"])
    def test_more_parts_than_a_launch_takes(self, stage: Stage, name: str) -> None:
        parts = [np.full(50, 1 + k % 3, dtype_of(name)) for k in range(2 * PARTS + 1)]
        out, expected = stage.poisoned(50, dtype_of(name)), np.zeros(50, dtype_of(name))
        HOST.reduce(parts, expected, "avg")
        stage.kernels.reduce([stage.put(part) for part in parts], out, "avg")
        assert same_bits(stage.get(out), expected)
        assert stage.launched == [COMBINE[name, "avg" if name == "int8" else "sum"]] * 3

    @pytest.mark.parametrize("name", ["float32", "float64", "int8", "complex64"])
    def test_many_parts_need_no_memory(
        self, stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Check a capture, which cannot allocate: its push has more arrays than a launch takes."""

        def refuse(*_: object) -> None:
            raise AssertionError("allocates memory")

        monkeypatch.setattr(device_kernels, "empty", refuse)
        parts = [np.full(50, 1 + k % 3, dtype_of(name)) for k in range(2 * PARTS + 1)]
        out, expected = stage.poisoned(50, dtype_of(name)), np.zeros(50, dtype_of(name))
        HOST.combine(parts, expected, "sum")
        stage.kernels.combine([stage.put(part) for part in parts], out, "sum")
        assert same_bits(stage.get(out), expected)

    @pytest.mark.parametrize("which", [0, PARTS - 1, PARTS, 2 * PARTS])
    def test_out_may_be_any_of_many_parts(self, stage: Stage, which: int) -> None:
        parts = [np.full(50, 1 + k % 3, np.float32) for k in range(2 * PARTS + 1)]
        device = [stage.put(part) for part in parts]
        expected = np.zeros(50, np.float32)
        HOST.reduce(parts, expected, "avg")
        stage.kernels.reduce(device, device[which], "avg")
        assert same_bits(stage.get(device[which]), expected)

    @pytest.mark.parametrize("op", ["sum", "avg", "max"])
    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_out_may_be_any_of_the_parts(self, stage: Stage, op: str, which: int) -> None:
        parts = [np.arange(70, dtype=np.float16) * (k + 1) for k in range(3)]
        device = [stage.put(part) for part in parts]
        expected = np.zeros(70, np.float16)
        HOST.reduce(parts, expected, op)
        stage.kernels.reduce(device, device[which], op)
        parts[which] = expected
        for array, wanted in zip(device, parts, strict=True):
            assert same_bits(stage.get(array), wanted)

    def test_no_call_is_launched_for_no_elements(self, stage: Stage) -> None:
        nothing = stage.put(np.empty(0, np.float32))
        stage.kernels.combine([nothing, nothing], nothing, "sum")
        sgd(stage.kernels, nothing, nothing, None, put=stage.put, **STEP)
        stage.kernels.pack_all([nothing], [nothing])
        assert stage.launched == []


STEP: dict[str, Any] = {
    "learning_rate": 0.1,
    "momentum": 0.9,
    "weight_decay": 1e-3,
    "rescale": 1 / 3,
    "clip": 1.5,
}
STEPS = {
    "all": STEP,
    "no clip": STEP | {"clip": None},
    "clip to nothing": STEP | {"clip": 0.0},
    "no decay": STEP | {"weight_decay": 0.0},
    "decay too small for float32": STEP | {"weight_decay": 1e-60},
}


VARIANTS = [(each.name, states) for each in PROGRAMS.values() for states in each.states]
"""All programs, with their counts of states."""
ROWS = {"all": (1e-3, 1 / 3, 1.5), "no clip": (1e-3, 1.0, -1.0), "no decay": (0.0, 1 / 3, 0.5)}
"""Last scalars of a row: decay, factor of the gradient, and bound."""


class UpdateCases:
    """Cases of `update`: by every program, and by ``sgd`` in detail."""

    @pytest.mark.parametrize("name", some_or_all(["float32"], UPDATED))
    @pytest.mark.parametrize(("program", "states"), VARIANTS)
    @pytest.mark.parametrize("common", ROWS.values(), ids=ROWS)
    def test_every_program(
        self,
        stage: Stage,
        program: str,
        states: int,
        name: str,
        common: tuple[float, float, float],
    ) -> None:
        size = UPDATED_ELEMENTS + 37
        rng = np.random.default_rng(9)
        own = rng.random(len(PROGRAMS[program].scalars) - len(common))
        row, segments = np.array([[*own, *common]]), segments_of(0, size)
        weights, gradients = (rng.standard_normal(size).astype(dtype_of(name)) for _ in range(2))
        working = np.float64 if name == "float64" else np.float32
        arrays = [weights, gradients, *rng.random((states, size)).astype(working)]
        weights[-3:] = np.nan, np.inf, 0
        gradients[-30:-27] = np.nan, np.inf, -np.inf
        device = [stage.put(array) for array in arrays]
        for _ in range(3):
            for kernels, (w, g, *kept) in ((HOST, arrays), (stage.kernels, device)):
                scalars = row if kernels is HOST else stage.put(row)
                kernels.update(program, w, g, kept, scalars, segments)
            for array, expected in zip(device, arrays, strict=True):
                assert same_bits(stage.get(array), expected)
        assert stage.launched == [UPDATE[program, states, name]] * 3

    @pytest.mark.parametrize("name", UPDATED)
    @pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
    @pytest.mark.parametrize("moving", [False, True], ids=["plain", "momentum"])
    @pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "unaligned"])
    def test_three_steps(
        self, stage: Stage, name: str, step: dict[str, Any], moving: bool, offset: int
    ) -> None:
        size = offset + UPDATED_ELEMENTS + 37
        rng = np.random.default_rng(1)
        weights, gradients = (rng.standard_normal(size).astype(dtype_of(name)) for _ in range(2))
        momenta = np.zeros(size, np.float64 if name == "float64" else np.float32)
        weights[-3:] = np.nan, np.inf, 0
        gradients[-30:-27] = np.nan, np.inf, -np.inf
        arrays = (weights, gradients, momenta)
        device = [stage.put(array) for array in arrays]
        w, g, m = (array[offset:] for array in arrays)
        dw, dg, dm = (array[offset:] for array in device)
        for _ in range(3):
            sgd(HOST, w, g, m if moving else None, **step)
            sgd(stage.kernels, dw, dg, dm if moving else None, put=stage.put, **step)
            for array, expected in zip(device, arrays, strict=True):
                assert same_bits(stage.get(array), expected)

    @pytest.mark.parametrize("name", ["float16", "bfloat16"])
    @pytest.mark.parametrize("moving", [False, True], ids=["plain", "momentum"])
    @pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "unaligned"])
    def test_masters(self, stage: Stage, name: str, moving: bool, offset: int) -> None:
        size = offset + UPDATED_ELEMENTS + 37
        rng = np.random.default_rng(3)
        weights, gradients = (rng.standard_normal(size).astype(dtype_of(name)) for _ in range(2))
        momenta, master = np.zeros(size, np.float32), weights.astype(np.float32)
        arrays = (weights, gradients, momenta, master)
        device = [stage.put(array) for array in arrays]
        w, g, m, wide = (array[offset:] for array in arrays)
        dw, dg, dm, dwide = (array[offset:] for array in device)
        segments = segments_of(3, 40, w.size)
        given = STEP | {"segments": segments, "lr_mult": (1e-3, 0.1), "wd_mult": (1, 1)}
        for _ in range(3):
            sgd(HOST, w, g, m if moving else None, master=wide, **given)
            put = stage.put
            sgd(stage.kernels, dw, dg, dm if moving else None, put=put, master=dwide, **given)
            for array, expected in zip(device, arrays, strict=True):
                assert same_bits(stage.get(array), expected)

    def test_segments_have_rows_of_their_own(self, stage: Stage) -> None:
        rng = np.random.default_rng(2)
        sizes = [0, 1, 63, UPDATED_ELEMENTS + 1, *rng.integers(0, 300, 2 * PIECES), 0]
        offsets = [10, *(10 + np.cumsum(sizes)).tolist()]
        lr_mult, wd_mult = rng.random((2, len(sizes))).tolist()
        arrays = rng.standard_normal((3, offsets[-1] + 5)).astype(np.float32)
        device = [stage.put(array) for array in arrays]
        for (low, high), lr, wd in zip(pairwise(offsets), lr_mult, wd_mult, strict=True):
            w, g, m = (array[low:high] for array in arrays)
            sgd(HOST, w, g, m, **STEP | {"learning_rate": 0.1 * lr, "weight_decay": 1e-3 * wd})
        factors = {"lr_mult": lr_mult, "wd_mult": wd_mult}
        segments = segments_of(*offsets)
        sgd(stage.kernels, *device, put=stage.put, segments=segments, **factors, **STEP)
        for array, expected in zip(device, arrays, strict=True):
            assert same_bits(stage.get(array), expected)
        assert stage.launched == [UPDATE["sgd", 1, "float32"]] * 3

    @pytest.mark.parametrize("name", UPDATED)
    @pytest.mark.parametrize("factors", [False, True], ids=["all", "segments"])
    def test_rows_are_those_in_memory(self, stage: Stage, name: str, factors: bool) -> None:
        """Check that scalars are read when the kernel runs, also by cached segments."""
        size = UPDATED_ELEMENTS + 37
        rng = np.random.default_rng(6)
        weights, gradients = (rng.standard_normal(size).astype(dtype_of(name)) for _ in range(2))
        momenta = np.zeros(size, np.float64 if name == "float64" else np.float32)
        device = [stage.put(array) for array in (weights, gradients, momenta)]
        segments = segments_of(0, 40, size) if factors else segments_of(0, size)
        cut = {"lr_mult": (1 / 3, 0.0), "wd_mult": (1.0, 2.0)} if factors else {}
        for rate in (0.1, 1e-9, 0.0, 1 / 3):
            given = STEP | {"learning_rate": rate, "segments": segments} | cut
            sgd(HOST, weights, gradients, momenta, **given)
            sgd(stage.kernels, *device, put=stage.put, **given)
            for array, expected in zip(device, (weights, gradients, momenta), strict=True):
                assert same_bits(stage.get(array), expected)


MEASURES = [(each.name, n) for each in PROGRAMS.values() if each.norms for n in each.states]


class MeasureCases:
    """Cases of `measure`, and of updates that read what it has measured."""

    @pytest.mark.parametrize("name", some_or_all(["float32", "bfloat16"], UPDATED))
    @pytest.mark.parametrize(("program", "states"), MEASURES)
    @pytest.mark.parametrize("wide", [False, True], ids=["plain", "master"])
    def test_two_steps_have_the_hosts_bits(
        self, stage: Stage, program: str, states: int, name: str, wide: bool
    ) -> None:
        if wide and dtype_of(name).itemsize > 2:
            return
        rng, norms = np.random.default_rng(5), PROGRAMS[program].norms
        assert norms is not None
        sizes = [0, 1, 15, 16, 1023, 1025, MEASURED_ELEMENTS + 1029, *[5] * PIECES]
        segments = segments_of(*np.cumsum([3, *sizes]).tolist())
        count = int(segments.bounds[-1]) + 2
        weights, gradients = (rng.standard_normal(count).astype(dtype_of(name)) for _ in range(2))
        working = np.float64 if name == "float64" else np.float32
        kept = rng.random((states + wide, count)).astype(working)
        own = rng.random((len(sizes), len(PROGRAMS[program].scalars) - 3))
        rows = np.hstack([own, np.tile([0.1, 0.5, 0.7], (len(sizes), 1))])
        total = np.array([1e6, 2.0])
        sums = np.ones((len(sizes), norms.sums))
        arrays = [weights, gradients, rows, total, sums, *kept]
        device = [stage.put(array) for array in arrays]
        for _ in range(2):
            for kernels, (w, g, scalars, of_all, found, *others) in (
                (HOST, arrays),
                (stage.kernels, device),
            ):
                changed, master = others[:states], others[states] if wide else None
                given = program, w, g, changed, scalars, segments
                scratch = kernels.measure_scratch(count, len(sizes))
                before, after = Measured(total=of_all), Measured(found, of_all)
                kernels.measure(*given, found, scratch, master=master, measured=before)
                kernels.update(*given, master=master, measured=after)
            for array, expected in zip(device, arrays, strict=True):
                assert same_bits(stage.get(array), expected)
        assert (sums[1:] > 1).all()

    def test_nothing_is_measured_under_a_set_flag(self, stage: Stage) -> None:
        arrays = [np.ones(5, np.float32) for _ in range(4)]
        row = stage.put(np.array([[*[0.25] * 10, 0.0, 1.0, -1.0]]))
        for flag in (1, 0):
            device = [stage.put(array) for array in arrays]
            sums, skip = stage.put(np.zeros((1, 2))), stage.put(np.full(1, flag, np.int32))
            scratch = stage.kernels.measure_scratch(5, 1)
            given = "lamb", *device[:2], device[2:], row, segments_of(0, 5), sums, scratch
            stage.kernels.measure(*given, skip)
            assert stage.get(sums).any() == (not flag)
            assert (stage.get(device[2]) == 1).all() == bool(flag)


class CopyCases:
    """Cases of `pack_all` and `unpack_all`, which copy several arrays at once."""

    @pytest.mark.parametrize("shift", [0, 1, 2, 4, 8], ids=lambda n: f"off by {n} bytes")
    def test_each_byte_is_copied_and_no_other_written(self, stage: Stage, shift: int) -> None:
        rng = np.random.default_rng(3)
        sizes = [0, 1, 15, 16, 17, COPY_BYTES - 1, COPY_BYTES, 2 * COPY_BYTES + 5]
        sizes += rng.integers(0, 100, 2 * PIECES).tolist()
        values = [np.frombuffer(rng.bytes(shift + size), np.uint8) for size in sizes]
        starts = np.cumsum([256, *(-(-size // 256) * 256 + 256 for size in sizes)]).tolist()
        bucket = stage.poisoned(starts[-1], np.dtype(np.uint8))
        slots = [bucket[lo : lo + size] for lo, size in zip(starts, sizes, strict=False)]
        expected = np.full(starts[-1], POISON, np.uint8)
        for lo, value in zip(starts, values, strict=False):
            expected[lo : lo + value.size - shift] = value[shift:]
        given = [stage.put(value)[shift:] for value in values]
        table = stage.kernels.pack_all(given, slots)
        assert np.array_equal(stage.get(bucket), expected)
        assert stage.launched == [COPY] * 3
        assert stage.kernels.pack_all(given, slots, table) is table

    def test_unpack_all_gives_back_what_pack_all_took(self, stage: Stage) -> None:
        values = [np.arange(n, dtype=np.float32).reshape(2, -1) for n in (2, 600, 2**15)]
        slots = [stage.poisoned(value.size, value.dtype) for value in values]
        outs = [stage.poisoned(value.size, value.dtype).reshape(value.shape) for value in values]
        stage.kernels.pack_all([stage.put(value) for value in values], slots)
        stage.kernels.unpack_all(slots, outs)
        for out, value in zip(outs, values, strict=True):
            assert np.array_equal(stage.get(out), value)
        assert stage.launched == [COPY] * 2


class ChecksumCases:
    """Cases of `checksums`, equal on all devices."""

    @pytest.mark.parametrize("offset", [0, 1, 4], ids=lambda n: f"off by {n} bytes")
    def test_sums_are_the_hosts(self, stage: Stage, offset: int) -> None:
        rng = np.random.default_rng(8)
        sizes = [0, 1, 7, 8, 9, SUMMED_BYTES - 1, SUMMED_BYTES, 2 * SUMMED_BYTES + 5]
        sizes += rng.integers(0, 100, 2 * PIECES).tolist()
        values = [np.frombuffer(rng.bytes(offset + size), np.uint8) for size in sizes]
        expected = HOST.checksums([value[offset:] for value in values])
        sums = stage.kernels.checksums([stage.put(value)[offset:] for value in values])
        assert stage.get(sums).tolist() == np.asarray(expected).tolist()
        assert stage.launched == [CHECKSUM] * 3
