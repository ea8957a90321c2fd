"""Layer 3b: CUDA's arithmetic in kernels compiled for the host."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.nccl.emulated.kernel_cases import failed, kernel, module, results

SUBNORMAL = np.float32(1e-40)
SIXTEEN = {"__half": "float16", "__nv_bfloat16": "bfloat16"}
HEADERS = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"


def dtype_of(name: str) -> np.dtype[Any]:
    if name == "float16":
        return np.dtype(name)
    return np.dtype(pytest.importorskip("ml_dtypes", reason="needs ml_dtypes").bfloat16)


def each(c_from: str, c_to: str, expression: str, x: np.ndarray, out: np.dtype[Any]) -> np.ndarray:
    """Return an expression in ``x``, evaluated by a kernel for each element."""
    made = module(
        f'{HEADERS}extern "C" __global__ void k(const {c_from}* in, {c_to}* out, long long n) {{\n'
        "    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;\n"
        f"    if (i < n) {{ const {c_from} x = in[i]; out[i] = {expression}; }}\n}}"
    )
    result = np.zeros(x.size, out)
    made.launch("k", -(-x.size // 256), 256, [x, result, np.int64(x.size)])
    return result


def same(a: np.ndarray, b: np.ndarray) -> None:
    """Check for equal bits; all NaNs count as equal."""
    with np.errstate(invalid="ignore"):
        nan_a, nan_b = a != a, b != b
    assert np.array_equal(nan_a, nan_b)
    assert a[~nan_a].tobytes() == b[~nan_b].tobytes()


class TestSixteenBits:
    @pytest.mark.parametrize("c_type", SIXTEEN)
    def test_every_number_is_widened(self, c_type):
        dtype = dtype_of(SIXTEEN[c_type])
        every = np.arange(2**16, dtype=np.uint16).view(dtype)
        same(each(c_type, "float", "float(x)", every, np.dtype("f4")), every.astype("f4"))

    @pytest.mark.parametrize("c_from", ["float", "double"])
    @pytest.mark.parametrize("c_type", SIXTEEN)
    def test_numbers_are_rounded_to_nearest_even(self, c_type, c_from):
        dtype = dtype_of(SIXTEEN[c_type])
        every = np.arange(2**16, dtype=np.uint16).view(dtype).astype("f4")
        every = np.sort(every[np.isfinite(every)].astype("f8"))
        ties = (every[1:] + every[:-1]) / 2
        wide = np.dtype("f4" if c_from == "float" else "f8")
        near = [np.nextafter(ties.astype(wide), wide.type(side)) for side in (-np.inf, np.inf)]
        rng = np.random.default_rng(1)
        random = rng.standard_normal(10**5) * 2.0 ** rng.integers(-45, 45, 10**5)
        top = [np.inf, -np.inf, np.nan, 65519.99, 65520, 3.3e38, 3.4e38, 0.0, -0.0]
        x = np.concatenate([every, ties, *near, random, top])
        with np.errstate(over="ignore"):
            x = x.astype(wide)
            expected = x.astype(dtype)
        if c_from == "double" and dtype.name == "bfloat16":
            # ml_dtypes rounds through single precision.
            expected = np.array([_rounded(value) for value in x.tolist()], "f4").astype(dtype)
        same(each(c_from, c_type, f"{c_type}(x)", x, dtype), expected)

    @pytest.mark.parametrize("c_type", SIXTEEN)
    def test_nan_is_cudas(self, c_type):
        x = np.array([np.nan, -np.nan])
        out = each("double", c_type, f"{c_type}(x)", x, np.dtype("u2"))
        assert out.tolist() == [0x7FFF, 0x7FFF]

    @pytest.mark.parametrize("op", "+-*/")
    @pytest.mark.parametrize("c_type", SIXTEEN)
    def test_arithmetic_is_rounded_once(self, c_type, op):
        dtype = dtype_of(SIXTEEN[c_type])
        rng = np.random.default_rng(2)
        a, b = rng.integers(0, 2**16, (2, 10**5), dtype=np.uint16).view(dtype)
        made = module(
            f'{HEADERS}extern "C" __global__ void k(const {c_type}* a, const {c_type}* b,'
            f" {c_type}* out) {{ const int i = blockIdx.x * blockDim.x + threadIdx.x;"
            f" out[i] = a[i] {op} b[i]; }}"
        )
        out = np.zeros_like(a)
        made.launch("k", a.size // 200, 200, [a, b, out])
        exact = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[op]
        with np.errstate(all="ignore"):
            same(out, exact(a.astype("f8"), b.astype("f8")).astype("f4").astype(dtype))

    def test_a_fused_product_is_rounded_once(self):
        # 1 + 3 * 2^-10, squared, less 1: the product needs more bits than a half has.
        x = np.array([1 + 3 * 2.0**-10], np.float16)
        out = each("__half", "__half", "__hfma(x, x, __half(-1.0f))", x, np.dtype("f2"))
        assert out[0] == np.float16(6 * 2.0**-10 + 9 * 2.0**-20) != 6 * 2.0**-10


def _rounded(x: float) -> float:
    """Round a double to the nearest bfloat16, ties to even."""
    if not math.isfinite(x) or x == 0:
        return x
    quantum = Fraction(2) ** (max(math.frexp(x)[1], -125) - 8)
    value = round(Fraction(x) / quantum) * quantum
    return math.copysign(float(abs(value)) if abs(value) < 2**128 else math.inf, x)


class TestRounding:
    # The square needs more bits than a float has: rounding loses the last, 2^-24.
    A, SQUARE = np.float32(1 + 2.0**-12), np.float32(1 + 2.0**-11)
    TEXT = 'extern "C" __global__ void k(float* out, float a, float b) { *out = a * a - b; }'

    def value(self, *options: str) -> float:
        out = np.zeros(1, np.float32)
        module(self.TEXT, options).launch("k", 1, 1, [out, self.A, self.SQUARE])
        return float(out[0])

    def test_products_and_sums_are_fused_where_that_is_asked_for(self):
        assert self.value() == self.value("--fmad=false") == 0
        assert self.value("--fmad=true") == 2.0**-24

    def test_a_fused_product_of_the_program_is_always_one(self):
        x = np.array([self.A])
        out = each("float", "float", "fmaf(x, x, -(1 + 1 / 2048.0f))", x, np.dtype("f4"))
        assert out[0] == 2.0**-24

    @pytest.mark.parametrize("c_type", ["float", "double"])
    def test_subnormal_numbers_of_single_precision_are_flushed_where_asked_for(self, c_type):
        text = f'extern "C" __global__ void k({c_type}* out, {c_type} x) {{ *out = x + x; }}'
        dtype = np.float32 if c_type == "float" else np.float64
        tiny = SUBNORMAL if c_type == "float" else np.float64(1e-310)
        found = []
        for options in ((), ("-ftz=true",), ("--ftz=false",)):
            out = np.zeros(1, dtype)
            module(text, options).launch("k", 1, 1, [out, tiny])
            found.append(out[0])
        assert found == [2 * tiny, 0 if c_type == "float" else 2 * tiny, 2 * tiny]

    def test_flushing_ends_with_the_kernel(self):
        module(self.TEXT, ("-ftz=true",)).launch(
            "k", 1, 1, [np.zeros(1, np.float32), self.A, self.SQUARE]
        )
        # A comparison that flushes would find a subnormal number equal to 0.
        assert (SUBNORMAL * np.float32(1)).tobytes() == SUBNORMAL.tobytes()

    def test_integers_wrap(self):
        made = kernel("int* out, int x", "out[0] = x + 1; out[1] = x + 1 > x; out[2] = x * 2;")
        out = np.ones(3, np.int32)
        made.launch("k", 1, 1, [out, np.int32(2**31 - 1)])
        assert out.tolist() == [-(2**31), 0, -2]

    def test_extremes_of_numbers_and_nan(self):
        x = np.array([np.nan, 2.0], np.float32)
        for call, expected in {"max": [1, 2], "min": [1, 1]}.items():
            for arguments in ("x, 1.0f", "1.0f, x"):
                out = each("float", "float", f"{call}({arguments})", x, np.dtype("f4"))
                assert out.tolist() == expected
        assert results("u4", "max(-1, 5u)")[0] == 2**32 - 1


class TestOutcomesThatAreNotEmulated:
    @pytest.mark.parametrize(
        ("c_type", "offset"),
        [("short", 1), ("float", 2), ("double", 4), ("float4", 8), ("uint2", 4)],
    )
    def test_a_misaligned_address_fails(self, c_type, offset):
        made = kernel("char* out", f"*reinterpret_cast<{c_type}*>(out) = {c_type}();")
        memory = np.zeros(64, np.uint8)
        begin = -memory.ctypes.data % 16
        made.launch("k", 1, 1, [memory[begin:]])
        code, said = failed(made, 1, 1, [memory[begin + offset :]])
        assert code == 716
        assert f"a misaligned address, {offset} bytes behind a multiple of" in said
        assert said.startswith("kernel k, block (0, 0, 0), thread (0, 0, 0): ")
        assert said.endswith("at default_program:3")

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ("*x / *y", "a division of integers that overflows or is by zero"),
            ("*x % *y", "a division of integers that overflows or is by zero"),
            ("(int(0x80000000u) + *y) / (*y - 1)", "a division of integers that overflows"),
            ("*x << (*y + 32)", "a shift by as many bits as the number has"),
            ("*x >> (*y - 1)", "a shift by as many bits as the number has"),
        ],
    )
    def test_what_a_processor_does_otherwise_fails(self, body, words):
        made = kernel("int* x, int* y", f"*x = {body};")
        code, said = failed(made, 1, 1, [np.ones(1, np.int32), np.zeros(1, np.int32)])
        assert code == 719
        assert words in said

    def test_assertions_and_traps(self):
        code, said = failed(kernel("", "assert(t < 3);"), 1, 8, [])
        assert code == 710
        assert said.endswith("assertion 't < 3' failed")
        kernel("", "assert(t < 3);").launch("k", 1, 3, [])
        code, said = failed(kernel("", "if (t == 5) __trap();"), 2, 8, [])
        assert code == 719
        assert said.endswith("thread (5, 0, 0): __trap")


class TestAtomics:
    @pytest.mark.parametrize(
        ("name", "begin", "value", "expected"),
        [
            ("Add", 5, 3, 8),
            ("Sub", 5, 3, 2),
            ("Exch", 5, 3, 3),
            ("Min", 5, 3, 3),
            ("Max", 5, 3, 5),
            ("Inc", 5, 9, 6),
            ("Inc", 5, 5, 0),
            ("Dec", 5, 9, 4),
            ("Dec", 0, 9, 9),
            ("Dec", 12, 9, 9),
            ("And", 5, 3, 1),
            ("Or", 5, 3, 7),
            ("Xor", 5, 3, 6),
        ],
    )
    def test_new_and_old_values(self, name, begin, value, expected):
        for scope in ("", "_block", "_system"):
            made = kernel("unsigned* x, unsigned* old", f"*old = atomic{name}{scope}(x, {value}u);")
            x, old = np.array([begin], np.uint32), np.zeros(1, np.uint32)
            made.launch("k", 1, 1, [x, old])
            assert (x[0], old[0]) == (expected, begin)

    @pytest.mark.parametrize(
        ("c_type", "dtype"),
        [("int", "i4"), ("unsigned long long", "u8"), ("float", "f4"), ("double", "f8")],
    )
    def test_sums_of_all_types(self, c_type, dtype):
        total = np.zeros(1, dtype)
        kernel(f"{c_type}* x", f"atomicAdd(x, {c_type.split()[0]}(t));".replace(
            "unsigned(t)", "(unsigned long long)t")).launch("k", 3, 100, [total])  # fmt: skip
        assert total[0] == 3 * sum(range(100))

    def test_extremes_of_signed_numbers(self):
        x = np.array([0, 0], np.int64)
        made = kernel(
            "long long* x", "atomicMin(x, -(long long)t); atomicMax(x + 1, (long long)t);"
        )
        made.launch("k", 1, 50, [x])
        assert x.tolist() == [-49, 49]

    def test_compare_and_swap(self):
        x, won = np.zeros(1, np.int32), np.zeros(1, np.int32)
        made = kernel("int* x, int* won", "if (atomicCAS(x, 0, int(t) + 1) == 0) *won = t + 1;")
        made.launch("k", 1, 64, [x, won])
        assert x[0] == won[0] != 0

    @pytest.mark.parametrize("c_type", SIXTEEN)
    def test_sixteen_bits_leave_their_neighbours(self, c_type):
        x = np.zeros(3, dtype_of(SIXTEEN[c_type]))
        text = (
            f'{HEADERS}extern "C" __global__ void k({c_type}* x)'
            f" {{ atomicAdd(x + 1, {c_type}(2.0f)); }}"
        )
        module(text).launch("k", 1, 64, [x])
        assert x.astype("f4").tolist() == [0, 128, 0]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("__popc(0xF0F00001u)", 9),
        ("__popcll(0xF0F0000100000001ull)", 10),
        ("__clz(1)", 31),
        ("__clz(0)", 32),
        ("__clzll(1)", 63),
        ("__clzll(0)", 64),
        ("__ffs(8)", 4),
        ("__ffs(0)", 0),
        ("__ffsll(1ll << 40)", 41),
        ("__brev(1u)", 2**31),
        ("__brevll(2ull)", 2**62),
        ("__byte_perm(0x33221100u, 0x77665544u, 0x7052u)", 0x77005522),
        ("__umulhi(0xffffffffu, 0xfffffffeu)", 0xFFFFFFFD),
        ("__mulhi(-2, 1 << 30)", -1),
        ("__umul64hi(~0ull, 16ull)", 15),
        ("__mul64hi(-1ll, 16ll)", -1),
        ("__funnelshift_l(0x80000000u, 1u, 1u)", 3),
        ("__funnelshift_r(0x80000000u, 1u, 31u)", 3),
        ("__float_as_int(1.0f)", 0x3F800000),
        ("__double_as_longlong(-2.0)", -(2**62)),
        ("__double2hiint(1.0)", 0x3FF00000),
        ("(long long)__hiloint2double(0x40080000, 0)", 3),
        ("(long long)__int_as_float(0x40400000)", 3),
        ("__float2int_rn(2.5f)", 2),
        ("__float2int_rd(-2.5f)", -3),
        ("__float2int_ru(2.1f)", 3),
        ("(long long)(rsqrtf(0.25f) * 100)", 200),
        ("(long long)(rsqrt(0.0625) * 100)", 400),
        ("(long long)(sinpi(0.5) * 100)", 100),
        ("__ldg(&warpSize)", 32),
        ("isnan(0.0f / (float)t) + 2 * isinf(1.0 / t)", 3),
    ],
)
def test_functions_on_bits_and_numbers(expression, expected):
    assert results("i8", f"(long long)({expression})")[0] == expected


def test_vectors_have_cudas_sizes_and_alignments():
    bases = {"char": 1, "ushort": 2, "int": 4, "longlong": 8, "float": 4, "double": 8}
    for base, length in itertools.product(bases, (1, 2, 3, 4)):
        size = bases[base] * length
        alignment = bases[base] if length in (1, 3) else min(size, 16)
        name = f"{base}{length}"
        text = f"static_assert(sizeof({name}) == {size} && alignof({name}) == {alignment});"
        module(text)
    assert (
        results("f4", "make_float4(1, 2, 3, 4).w + make_uint3(5, 6, 7).z + dim3(8, 9).z")[0] == 12
    )
