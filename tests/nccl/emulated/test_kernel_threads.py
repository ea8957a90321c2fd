"""Layer 3b: threads, blocks and warps of kernels that are compiled for the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.nccl.emulated.kernel_cases import failed, kernel, module, results

LANES = np.arange(32, dtype=np.int32)
ALL = "0xffffffffu"
TREE = """
    s[t] = x[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (unsigned step = blockDim.x / 2; step; step /= 2) {
        if (t < step) s[t] += s[t + step];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = s[0];
"""
SUMS = {
    "static": f"__shared__ double s[256]; {TREE}",
    "dynamic": f"extern __shared__ double s[]; {TREE}",
    "dynamic, aligned": (
        "extern __shared__ __align__(16) unsigned char memory[];"
        f" double* s = reinterpret_cast<double*>(memory); {TREE}"
    ),
}


@pytest.fixture
def seed(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda value: monkeypatch.setenv("EMULATED_SEED", str(value))


class TestIndices:
    @pytest.mark.parametrize(
        ("grid", "block"), [((3, 1, 1), (5, 1, 1)), ((2, 3, 4), (5, 2, 3)), ((1, 7, 1), (1, 1, 64))]
    )
    def test_each_thread_runs_once_with_its_own(self, grid, block):
        made = kernel(
            "unsigned* counts, unsigned* sizes",
            """const unsigned b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
            const unsigned n = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + t;
            counts[b * blockDim.x * blockDim.y * blockDim.z + n] += 1;
            if (b == 0 && n == 0) {
                const unsigned all[] = {gridDim.x, gridDim.y, gridDim.z,
                                        blockDim.x, blockDim.y, blockDim.z};
                for (int i = 0; i < 6; ++i) sizes[i] = all[i];
            }""",
        )
        counts, sizes = np.zeros(np.prod(grid) * np.prod(block), np.uint32), np.zeros(6, np.uint32)
        made.launch("k", grid, block, [counts, sizes])
        assert set(counts) == {1}
        assert sizes.tolist() == [*grid, *block]

    def test_blocks_before_the_first_are_left_out(self):
        out = np.zeros(7, np.int32)
        kernel("int* out", "out[blockIdx.x] += 1;").launch("k", 7, 1, [out], first=4)
        assert out.tolist() == [0, 0, 0, 0, 1, 1, 1]


class TestOrder:
    ORDERS = kernel(
        "unsigned* next, unsigned* blocks, unsigned* threads",
        """const unsigned turn = (*next)++;
        blocks[turn] = blockIdx.x;
        threads[turn] = t;""",
    )

    def orders(self, grid: int, block: int) -> np.ndarray:
        counter, found = np.zeros(1, np.uint32), np.zeros((2, grid * block), np.uint32)
        self.ORDERS.launch("k", grid, block, [counter, found[0], found[1]])
        return found

    def test_blocks_and_threads_are_shuffled(self, seed):
        seed(0)
        blocks, threads = self.orders(50, 1)[0], self.orders(1, 50)[1]
        for order in (blocks, threads):
            assert sorted(order) == list(range(50))
            assert order.tolist() not in (list(range(50)), list(range(50))[::-1])

    def test_a_seed_chooses_the_order(self, seed):
        found = []
        for value in (1, 2, 1):
            seed(value)
            found.append(self.orders(20, 20).tolist())
        assert found[0] == found[2] != found[1]

    def test_threads_of_blocks_have_different_orders(self, seed):
        seed(0)
        threads = self.orders(4, 64)[1].reshape(4, 64)
        assert len({tuple(row) for row in threads.tolist()}) == 4

    def test_after_a_barrier_the_order_is_another(self, seed):
        seed(0)
        made = kernel(
            "unsigned* next, unsigned* first, unsigned* second",
            "first[(*next)++] = t; __syncthreads(); second[(*next)++ - blockDim.x] = t;",
        )
        counter, found = np.zeros(1, np.uint32), np.zeros((2, 64), np.uint32)
        made.launch("k", 1, 64, [counter, found[0], found[1]])
        assert sorted(found[0]) == sorted(found[1]) == list(range(64))
        assert found[0].tolist() != found[1].tolist()


class TestBarriers:
    @pytest.mark.parametrize("threads", [1, 2, 32, 256])
    @pytest.mark.parametrize("memory", SUMS)
    def test_sums_in_shared_memory(self, memory, threads):
        made = kernel("const double* x, double* out", SUMS[memory])
        x, out = np.arange(threads * 5.0), np.zeros(5)
        shared = 0 if memory == "static" else threads * x.itemsize
        made.launch("k", 5, threads, [x, out], shared=shared)
        assert out.tolist() == x.reshape(5, -1).sum(axis=1).tolist()

    def test_dynamic_shared_memory_outside_of_a_function(self):
        made = module("""
            extern __shared__ int all[];
            __device__ void put(int i, int x) { all[i] = x; }
            extern "C" __global__ void k(int* out) {
                put(threadIdx.x, threadIdx.x * 3);
                __syncthreads();
                out[threadIdx.x] = all[blockDim.x - 1 - threadIdx.x];
            }""")
        out = np.zeros(32, np.int32)
        made.launch("k", 1, 32, [out], shared=4 * 32)
        assert out.tolist() == (LANES * 3)[::-1].tolist()

    def test_a_barrier_orders_memory_of_all_threads(self):
        made = kernel(
            "int* x",
            "for (int i = 0; i < 9; ++i) {"
            "    const int next = x[(t + 1) % blockDim.x];"
            "    __syncthreads(); x[t] = next + 1; __syncthreads();"
            "}",
        )
        x = np.arange(100, dtype=np.int32)
        made.launch("k", 1, 100, [x])
        assert x.tolist() == (np.roll(np.arange(100), -9) + 9).tolist()

    @pytest.mark.parametrize(
        ("call", "expected"),
        [
            ("__syncthreads_count(t < 5)", 5),
            ("__syncthreads_or(t == 7)", 1),
            ("__syncthreads_or(t == 99)", 0),
            ("__syncthreads_and(t < 40)", 1),
            ("__syncthreads_and(t != 39)", 0),
        ],
    )
    def test_votes_of_a_block(self, call, expected):
        assert results("i4", call, 40).tolist() == [expected] * 40

    def test_threads_of_all_dimensions_meet(self):
        made = kernel(
            "int* out",
            "const int n = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + t;"
            "__shared__ int s[24]; s[n] = n; __syncthreads();"
            "out[n] = s[23 - n] + 100 * threadIdx.z;",
        )
        out = np.zeros(24, np.int32)
        made.launch("k", 1, (2, 3, 4), [out])
        assert out.tolist() == [23 - n + 100 * (n // 6) for n in range(24)]

    def test_more_than_a_thousand_threads_wait_at_once(self):
        assert results("i4", "__syncthreads_count(t % 2)", 1024).tolist() == [512] * 1024


class TestDivergence:
    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ("if (t < 5) __syncthreads();", "27 have ended, 5 wait in __syncthreads"),
            ("if (t == 9) return; __syncthreads();", "1 have ended, 31 wait in __syncthreads"),
            (
                f"if (t < 16) __syncthreads(); else __syncwarp({ALL});",
                "16 wait in __syncthreads, 16 wait in __syncwarp",
            ),
            (
                f"if (t < 16) __syncwarp({ALL}); else __any_sync({ALL}, 1);",
                "16 wait in __any_sync, 16 wait in __syncwarp",
            ),
            (f"__syncwarp(t == 3 ? 0xf : {ALL});", "32 wait in __syncwarp"),
        ],
    )
    def test_a_barrier_that_not_all_reach_fails(self, body, words):
        code, said = failed(kernel("", body), 1, 32, [])
        assert code == 719
        assert said == f"kernel k, block (0, 0, 0): a divergent barrier: of 32 threads {words}"

    def test_the_block_is_named_and_no_other_runs_after_it(self):
        made = kernel("int* ran", "*ran += 1; if (blockIdx.y == 1 && t) __syncthreads();")
        ran = np.zeros(1, np.int32)
        code, said = failed(made, (1, 40), 2, [ran])
        assert code == 719
        assert said.startswith("kernel k, block (0, 1, 0): a divergent barrier")
        assert ran[0] < 80

    def test_a_launch_after_it_is_right(self):
        diverges = kernel("", "if (t) __syncthreads();")
        for _ in range(3):
            failed(diverges, 2, 64, [])
            assert results("i4", "__syncthreads_count(1)", 64).tolist() == [64] * 64

    def test_failed_launches_leave_nothing(self):
        diverges = kernel("", "if (t) __syncthreads();")
        failed(diverges, 1, 1024, [])
        before = len(Path("/proc/self/maps").read_text().splitlines())
        for _ in range(3):
            failed(diverges, 1, 1024, [])
        assert len(Path("/proc/self/maps").read_text().splitlines()) < before + 500

    def test_a_lane_outside_of_its_mask_fails(self):
        code, said = failed(kernel("", "__syncwarp(0xf);"), 1, 32, [])
        assert code == 719
        assert "__syncwarp with a mask that lacks the calling lane" in said


class TestWarps:
    @pytest.mark.parametrize("width", [32, 16, 2])
    @pytest.mark.parametrize("by", [0, 1, 5, 17])
    def test_shuffles(self, width, by):
        first = LANES // width * width
        end = first + width
        xor = LANES ^ by
        expected = {
            "__shfl_sync": first + by % width,
            "__shfl_up_sync": np.where(LANES - by >= first, LANES - by, LANES),
            "__shfl_down_sync": np.where(LANES + by < end, LANES + by, LANES),
            "__shfl_xor_sync": np.where(xor < end, xor, LANES),
        }
        for name, lanes in expected.items():
            found = results("i4", f"{name}({ALL}, int(t) * 10, {by}, {width})", 32)
            assert found.tolist() == (lanes * 10).tolist(), name

    @pytest.mark.parametrize("c_type", ["float", "double", "long long", "unsigned"])
    def test_values_of_all_sizes(self, c_type):
        found = results("f8", f"__shfl_down_sync({ALL}, ({c_type})t * 3, 1)", 32)
        assert found[:31].tolist() == [3.0 * n for n in range(1, 32)]

    def test_each_warp_is_for_itself(self):
        found = results("i4", f"__shfl_sync({ALL}, int(t), 3)", 96)
        assert found.tolist() == [3] * 32 + [35] * 32 + [67] * 32

    def test_a_sum_by_shuffles(self):
        made = kernel(
            "int* out",
            "int x = t; for (int k = 16; k; k /= 2)"
            f" x += __shfl_xor_sync({ALL}, x, k); out[t] = x;",
        )
        out = np.zeros(64, np.int32)
        made.launch("k", 1, 64, [out])
        assert out.tolist() == [sum(range(32))] * 32 + [sum(range(32, 64))] * 32

    @pytest.mark.parametrize(
        ("call", "expected"),
        [
            (f"__ballot_sync({ALL}, t % 3 == 0)", sum(1 << n for n in range(0, 32, 3))),
            (f"__any_sync({ALL}, t == 5)", 1),
            (f"__any_sync({ALL}, 0)", 0),
            (f"__all_sync({ALL}, t < 32)", 1),
            (f"__all_sync({ALL}, t != 5)", 0),
            (f"__reduce_add_sync({ALL}, t)", 496),
            (f"__reduce_min_sync({ALL}, int(t) - 3)", 2**32 - 3),
            (f"__reduce_max_sync({ALL}, int(t) - 99)", 2**32 - 68),
            (f"__reduce_or_sync({ALL}, t)", 31),
            (f"__reduce_and_sync({ALL}, t | 64)", 64),
            (f"__reduce_xor_sync({ALL}, t + 1)", 32),
        ],
    )
    def test_votes_and_reductions(self, call, expected):
        assert results("u4", call, 32).tolist() == [expected] * 32

    def test_lanes_with_the_same_value(self):
        found = results("u4", f"__match_any_sync({ALL}, t / 8)", 32)
        assert found.tolist() == [0xFF << n // 8 * 8 for n in range(32)]

    def test_a_part_of_a_warp_meets_alone(self):
        found = results(
            "u4", "t < 4 ? __ballot_sync(0xf, 1) : __ballot_sync(0xfffffff0u, t > 30)", 32
        )
        assert found.tolist() == [0xF] * 4 + [0x80000000] * 28

    def test_lanes_that_have_ended_are_not_waited_for(self):
        made = kernel("unsigned* out", f"if (t % 2) return; out[t] = __ballot_sync({ALL}, 1);")
        out = np.zeros(32, np.uint32)
        made.launch("k", 1, 32, [out])
        assert out[::2].tolist() == [0x55555555] * 16

    def test_a_warp_that_is_not_full_meets(self):
        assert (
            results("u4", f"__ballot_sync({ALL}, 1)", 40).tolist() == [2**32 - 1] * 32 + [255] * 8
        )


class TestSharedMemory:
    def test_it_is_poisoned_in_each_block(self):
        made = kernel(
            "unsigned* out",
            "extern __shared__ unsigned s[]; out[blockIdx.x * 4 + t] = s[t]; s[t] = t;",
        )
        out = np.zeros(12, np.uint32)
        made.launch("k", 3, 4, [out], shared=16)
        assert out.tolist() == [0xA5A5A5A5] * 12

    @pytest.mark.parametrize("shared", [0, 16, 100])
    def test_nothing_is_written_behind_it(self, shared):
        made = kernel("", "extern __shared__ unsigned char s[]; s[blockDim.x] = t;")
        made.launch("k", 1, 4, [], shared=5)
        code, said = failed(made, 2, max(shared, 1), [], shared=shared)
        assert code == 700
        assert said.endswith(f"it writes behind its {shared} bytes of dynamic shared memory")

    def test_a_block_has_no_more_than_a_device(self):
        made = kernel("", "")
        made.launch("k", 1, 1, [], shared=227 << 10)
        code, said = failed(made, 1, 1, [], shared=(227 << 10) + 1)
        assert (code, said) == (1, "a block has at most 227 KiB of shared memory")


class TestSeveralThreadsOfTheHost:
    def test_the_same_kernel_runs_in_two_at_once(self):
        made = kernel("const double* x, double* out", SUMS["static"])

        def total(begin: int) -> list[float]:
            x, out = np.arange(begin, begin + 256.0 * 40), np.zeros(40)
            for _ in range(20):
                made.launch("k", 40, 256, [x, out])
            return (out - x.reshape(40, -1).sum(axis=1)).tolist()

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(total, range(8))) == [[0.0] * 40] * 8

    def test_they_do_run_at_once(self):
        # Each waits until the other has come.
        made = kernel(
            "volatile int* here, volatile int* there, int* met",
            "*here = 1; const long long end = clock64() + 2000000000ll * 20;"
            "while (!*there && clock64() < end) {} *met = *there;",
        )
        flags, met = np.zeros((2, 1), np.int32), np.zeros((2, 1), np.int32)
        with ThreadPoolExecutor(2) as pool:
            for which in (0, 1):
                pool.submit(made.launch, "k", 1, 1, [flags[which], flags[1 - which], met[which]])
        assert met.tolist() == [[1], [1]]

    def test_atomic_functions_are_so_for_all(self):
        made = kernel("int* n, float* x, double* y",
                      "atomicAdd(n, 1); atomicAdd(x, 1.0f); atomicAdd(y, 0.5);")  # fmt: skip
        counts = np.zeros(1, np.int32), np.zeros(1, np.float32), np.zeros(1)
        with ThreadPoolExecutor(4) as pool:
            for _ in range(4):
                pool.submit(made.launch, "k", 400, 256, counts)
        assert [float(count[0]) for count in counts] == [409600, 409600, 204800]


def test_a_clock_of_2_ghz_lets_a_kernel_spin():
    made = kernel("", "const long long end = clock64() + 400000000; while (clock64() < end) {}")
    begin = time.monotonic()
    made.launch("k", 1, 1, [])
    assert 0.2 <= time.monotonic() - begin < 5


def test_a_thread_sleeps():
    made = kernel(
        "long long* out",
        "const long long begin = clock64(); __nanosleep(1000000); *out = clock64() - begin;",
    )
    cycles = np.zeros(1, np.int64)
    made.launch("k", 1, 1, [cycles])
    assert 2_000_000 <= cycles[0] < 10**9
