"""Layer 3b: barriers and shared memory of blocks, votes and shuffles of warps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.nccl.emulated.kernel_cases import SUMS, failed, kernel, module, results

LANES = np.arange(32, dtype=np.int32)
ALL = "0xffffffffu"


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

    def test_lanes_are_counted_by_x_then_y_then_z(self):
        made = kernel(
            "unsigned* out",
            "const unsigned n = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + t;"
            f" out[n] = __shfl_down_sync({ALL}, n, 5);",
        )
        out = np.zeros(64, np.uint32)
        made.launch("k", 1, (2, 4, 8), [out])
        assert out.tolist() == [n + 5 if n % 32 < 27 else n for n in range(64)]

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

    @pytest.mark.parametrize("call", [f"__syncwarp({ALL})", f"__shfl_xor_sync({ALL}, 0, 1)"])
    def test_a_thread_has_its_index_after_it(self, call):
        made = kernel("unsigned* out", f"{call}; out[t] = threadIdx.x;")
        out = np.zeros(64, np.uint32)
        made.launch("k", 1, 64, [out])
        assert out.tolist() == list(range(64))


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
