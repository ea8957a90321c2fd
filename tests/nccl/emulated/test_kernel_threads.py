"""Layer 3b: indices, order and time of a kernel's threads; launches from several host threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.nccl.emulated.kernel_cases import SUMS, kernel


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
        # Each launch waits for the other.
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
