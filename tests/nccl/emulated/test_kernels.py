"""Layer 3b: results of CuPy's own kernels and of a program's, on an emulated device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.nccl.emulated import kernel_images

cupy = pytest.importorskip("cupy", reason="layer 3b needs CuPy: pip install 'ncclkv[cuda12]'")

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
DTYPES = ["bool", *INTEGERS, *FLOATS, *COMPLEX]
DIGITS = {"float16": 3e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-13,
          "complex64": 2e-5, "complex128": 1e-12}  # fmt: skip
"""Allowed differences of functions and sums, relative to the largest number."""


def dtype_of(name: str) -> np.dtype[Any]:
    if name != "bfloat16":
        return np.dtype(name)
    return np.dtype(pytest.importorskip("ml_dtypes", reason="needs ml_dtypes").bfloat16)


def numbers(name: str, size: int = 600, seed: int = 1) -> np.ndarray:
    """Return some numbers, small enough for all results."""
    rng = np.random.default_rng(seed)
    if name == "bool":
        return rng.integers(0, 2, size).astype(bool)
    if name in INTEGERS:
        return rng.integers(0 if name[0] == "u" else -9, 10, size).astype(name)
    if name in COMPLEX:
        return (rng.standard_normal(size) + 1j * rng.standard_normal(size)).astype(name)
    return rng.standard_normal(size).astype(dtype_of(name))


def check(call: Callable[..., Any], *arrays: np.ndarray, exact: bool = False) -> None:
    """Compare a call on arrays of the device with the same call on NumPy's arrays."""
    with np.errstate(all="ignore"):
        expected = np.asarray(call(np, *arrays))
    found = cupy.asnumpy(call(cupy, *map(cupy.asarray, arrays)))
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    name = found.dtype.name
    if exact or name not in DIGITS:
        assert found.tobytes() == expected.tobytes()
        return
    wide = np.complex128 if name in COMPLEX else np.float64
    found, expected = found.astype(wide), expected.astype(wide)
    np.testing.assert_allclose(found, expected, rtol=0, atol=DIGITS[name] * abs(expected).max())


class TestUfuncs:
    @pytest.mark.parametrize("op", ["multiply", "maximum", "less_equal"])
    @pytest.mark.parametrize("name", DTYPES)
    def test_of_two_arrays_are_numpys_bits(self, name, op):
        a, b = numbers(name), numbers(name, seed=2)
        exact = not (name in COMPLEX and op == "multiply")
        check(lambda xp, x, y: getattr(xp, op)(x, y), a, b, exact=exact)

    @pytest.mark.parametrize("op", ["sqrt", "exp", "sin", "log1p"])
    @pytest.mark.parametrize("name", [*FLOATS, *COMPLEX])
    def test_functions(self, name, op):
        x = numbers(name)
        check(lambda xp, x: getattr(xp, op)(x if name in COMPLEX else abs(x)), x)

    @pytest.mark.parametrize("name", ["int8", "uint32", "int64"])
    def test_on_integers(self, name):
        x, y = numbers(name), numbers(name, seed=3)
        y[y == 0] = 3
        for op in ("floor_divide", "remainder", "bitwise_and", "bitwise_xor", "true_divide"):
            check(lambda xp, x, y, op=op: getattr(xp, op)(x, y), x, y)

    @pytest.mark.parametrize("name", FLOATS)
    def test_nan_infinity_and_signs(self, name):
        x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5]).astype(dtype_of(name))
        for op in ("isnan", "isinf", "isfinite", "signbit"):
            check(lambda xp, x, op=op: getattr(xp, op)(x), x)
        check(lambda xp, x: xp.fmax(x, x[::-1]), x[[0, 1, 5]], exact=True)

    def test_strides_broadcasts_and_scalars(self):
        x = numbers("float64").reshape(20, 30)
        check(lambda xp, x: x[::2, ::-3].T + x[0, :10, None] * 2 - 1, x, exact=True)

    def test_subnormal_numbers_of_single_precision_are_flushed(self):
        # CuPy compiles with -ftz=true.
        tiny = cupy.asarray(np.array([1e-40, 1.0], np.float32))
        assert (tiny + tiny).get().tolist() == [0.0, 2.0]
        assert tiny.copy().get()[0] == np.float32(1e-40)
        tiny = cupy.asarray(np.array([1e-310]))
        assert (tiny + tiny).get()[0] == 2 * 1e-310


class TestReductions:
    @pytest.mark.parametrize("name", DTYPES)
    def test_of_all_dtypes(self, name):
        x = numbers(name)
        check(lambda xp, x: x.sum(), x)
        if name in COMPLEX:
            check(lambda xp, x: x.mean(axis=0), x)
        else:
            check(lambda xp, x: x.max(), x, exact=True)
        if name not in ("bfloat16", *COMPLEX):
            check(lambda xp, x: x.argmin(), x)

    @pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), None])
    def test_along_axes(self, axis):
        x = numbers("float64", 3 * 70 * 90).reshape(3, 70, 90)
        check(lambda xp, x: x.sum(axis=axis), x)
        check(lambda xp, x: x.max(axis=axis, keepdims=True), x, exact=True)

    @pytest.mark.parametrize("size", [1, 2, 31, 512, 513, 100_000])
    def test_of_all_lengths(self, size):
        check(lambda xp, x: x.sum(), np.arange(size), exact=True)
        check(lambda xp, x: x.argmax(), numbers("float64", size))
        check(lambda xp, x: xp.cumsum(x), np.arange(size), exact=True)

    def test_truth(self):
        x = numbers("bool").reshape(20, 30)
        x[3], x[4] = True, False
        check(lambda xp, x: x.all(axis=1), x)
        check(lambda xp, x: x.any(axis=1), x)
        check(lambda xp, x: xp.count_nonzero(x), x)


class TestArrays:
    @pytest.mark.parametrize("other", ["bool", "int8", "uint32", *FLOATS, "complex64"])
    @pytest.mark.parametrize("name", ["bool", "int16", "bfloat16", "float64"])
    def test_casts(self, name, other):
        x = np.abs(numbers(name)) if name != "bool" else numbers(name)
        check(lambda xp, x: x.astype(dtype_of(other)), x, exact=True)

    @pytest.mark.parametrize(
        "name", ["bool", "int8", "uint64", "float16", "bfloat16", "complex128"]
    )
    def test_made_filled_joined_and_chosen(self, name):
        dtype = dtype_of(name)
        x, y = numbers(name), numbers(name, seed=5)
        check(lambda xp, x: xp.full((3, 5), 1, dtype), x, exact=True)
        check(lambda xp, x, y: xp.concatenate([x, y[::3]]), x, y, exact=True)
        if name != "bfloat16":
            check(lambda xp, x, y: xp.where(x == y, x, y), x, y, exact=True)
        check(lambda xp, x: x.reshape(20, 30).T.copy()[4:9], x, exact=True)
        check(lambda xp, x: x[x == x[0]], x, exact=True)

    def test_copyto_casts_and_masks(self):
        def copied(xp: Any, x: Any) -> Any:
            out = xp.zeros(x.shape, np.float16)
            xp.copyto(out, x)
            xp.copyto(out, 7, where=x > 0)
            return out

        check(copied, numbers("float32"), exact=True)

    def test_ranges_and_comparisons(self):
        check(lambda xp, x: xp.arange(5, 50, 3), np.zeros(1), exact=True)
        check(lambda xp, x: xp.linspace(0, 1, 33), np.zeros(1))
        check(lambda xp, x: xp.allclose(x, x + 1e-12), numbers("float64"))
        check(lambda xp, x: xp.array_equal(x, x[::-1]), numbers("float64"))
        check(lambda xp, x: x.byteswap(), numbers("int32"), exact=True)


class TestProgramsKernels:
    def test_elementwise_and_reduction_kernels(self):
        x = cupy.arange(5.0)
        squared = cupy.ElementwiseKernel("T x, T y", "T z", "z = x * x - y", "squared")
        assert squared(x, 1.0).get().tolist() == [-1, 0, 3, 8, 15]
        norm = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
        assert float(norm(x)) == 30**0.5

    def test_fused_functions(self):
        @cupy.fuse()
        def hypot(x: Any, y: Any) -> Any:
            return cupy.sqrt(x * x + y * y)

        assert hypot(cupy.array([3.0, 6.0]), cupy.array([4.0, 8.0])).get().tolist() == [5, 10]

    def test_raw_kernels_with_structures_and_shared_memory(self):
        kernel = cupy.RawKernel(
            """struct Two { long long n; double by; };
            extern "C" __global__ void reversed(double* x, const Two two) {
                extern __shared__ double s[];
                const int i = blockIdx.x * blockDim.x + threadIdx.x;
                s[threadIdx.x] = i < two.n ? x[i] : 0;
                __syncthreads();
                if (i < two.n) x[i] = s[blockDim.x - 1 - threadIdx.x] * two.by;
            }""",
            "reversed",
        )
        two = np.array((8, 0.5), np.dtype([("n", "i8"), ("by", "f8")]))
        x = cupy.arange(8.0)
        kernel((2,), (4,), (x, two), shared_mem=32)
        assert x.get().tolist() == [1.5, 1, 0.5, 0, 3.5, 3, 2.5, 2]

    def test_modules_with_templates(self):
        text = "template <class T> __global__ void doubled(T* x) { x[threadIdx.x] *= 2; }"
        module = cupy.RawModule(code=text, name_expressions=["doubled<int>", "doubled<float>"])
        for dtype, c_type in ((np.int32, "int"), (np.float32, "float")):
            x = cupy.arange(4, dtype=dtype)
            module.get_function(f"doubled<{c_type}>")((1,), (4,), (x,))
            assert x.get().tolist() == [0, 2, 4, 6]

    def test_a_refusal_is_cupys_error_with_the_log(self):
        kernel = cupy.RawKernel('extern "C" __global__ void k() { asm("exit;"); }', "k")
        with pytest.raises(cupy.cuda.compiler.CompileException) as caught:
            kernel((1,), (1,), ())
        assert "inline_PTX_is_not_emulated" in str(caught.value)
        assert kernel_images.NOTE in str(caught.value)

    def test_a_name_that_is_not_there(self):
        module = cupy.RawModule(code='extern "C" __global__ void k() {}')
        with pytest.raises(cupy.cuda.driver.CUDADriverError, match="NOT_FOUND"):
            module.get_function("other")

    def test_the_same_kernel_in_two_streams(self):
        xs = [cupy.arange(50_000.0) + k for k in range(2)]
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in xs]
        cupy.cuda.Device().synchronize()
        totals = []
        for _ in range(10):
            for x, stream in zip(xs, streams, strict=True):
                with stream:
                    totals.append(x.reshape(50, -1).sum(axis=1))
        for stream in streams:
            stream.synchronize()
        for k, total in enumerate(totals):
            expected = (np.arange(50_000.0) + k % 2).reshape(50, -1).sum(axis=1)
            assert np.array_equal(total.get(), expected)


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (
            "if (threadIdx.x) __syncthreads();",
            "LaunchFailure",
            "a divergent barrier: of 32 threads",
        ),
        ("assert(threadIdx.x < 9);", "Assert", "assertion 'threadIdx.x < 9' failed"),
        ("*(int*)((char*)x + 2) = 1;", "MisalignedAddress", "a misaligned address, 2 bytes behind"),
    ],
)
def test_a_kernel_that_fails_loses_the_device_in_words(body, error, words):
    program = f"""
import cupy
kernel = cupy.RawKernel(r'''extern "C" __global__ void wrong(int* x) {{ {body} }}''', "wrong")
x = cupy.zeros(9, "i4")
try:
    kernel((1,), (32,), (x,))
except RuntimeError:
    pass  # it has failed before the launch returns
try:
    cupy.cuda.Device().synchronize()
except cupy.cuda.runtime.CUDARuntimeError as lost:
    print(lost)
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.startswith(f"cudaError{error}")
    assert "emulated: kernel wrong, block (0, 0, 0)" in ended.stderr
    assert words in ended.stderr
