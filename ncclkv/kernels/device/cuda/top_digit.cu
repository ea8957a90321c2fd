// Find the next digit of the least size that is sent; one block of threads has a key.

#include "largest.cuh"

constexpr unsigned EACH = DIGITS / THREADS;

extern "C" __global__ void top_digit(const __grid_constant__ Takes takes) {
    if (takes.skip && *takes.skip) {
        return;
    }
    const unsigned i = blockIdx.x;
    unsigned* histogram = takes.histograms + u64(i) * DIGITS;
    __shared__ u64 totals[THREADS];
    u64 total = 0;
    for (unsigned k = 0; k < EACH; ++k) {
        total += histogram[threadIdx.x * EACH + k];
    }
    totals[threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.x == 0) {
        Least least = {};
        least.wanted = takes.wanted[i];
        if (!ADDS) {
            least = takes.least[i];
        }
        unsigned group = THREADS - 1;
        while (totals[group] < least.wanted) {
            least.wanted -= totals[group--];
        }
        unsigned digit = group * EACH + EACH - 1;
        while (histogram[digit] < least.wanted) {
            least.wanted -= histogram[digit--];
        }
        least.size |= digit << takes.shift;
        least.known |= unsigned(ONES) << takes.shift;
        takes.least[i] = least;
    }
    __syncthreads();
    for (unsigned k = 0; k < EACH; ++k) {
        histogram[threadIdx.x * EACH + k] = 0;
    }
}
