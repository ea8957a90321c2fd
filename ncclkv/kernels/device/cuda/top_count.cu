// Count the sizes of sums that begin with the known digits, by the next digit.
//
// With ADDS, gradients are added to the residuals first, and no digit is known.

#include "largest.cuh"

extern "C" __global__ void top_count(const __grid_constant__ Takes takes) {
    if (takes.skip && *takes.skip) {
        return;
    }
    __shared__ unsigned histogram[DIGITS];
    for (unsigned digit = threadIdx.x; digit < DIGITS; digit += blockDim.x) {
        histogram[digit] = 0;
    }
    __syncthreads();
    const Part part(takes);
    float* residual = takes.residual[part.piece] + part.begin;
#if ADDS
    const Least least = {};
    const float* gradients = takes.gradients + takes.start[part.piece] + part.begin;
#else
    const Least least = takes.least[part.piece];
#endif
    for (u64 j = threadIdx.x; j < part.size; j += blockDim.x) {
        float sum = residual[j];
#if ADDS
        sum += gradients[j];
        residual[j] = sum;
#endif
        const unsigned size = size_of(sum);
        if ((size & least.known) == least.size) {
            atomicAdd(histogram + (size >> takes.shift & ONES), 1u);
        }
    }
    __syncthreads();
    unsigned* all = takes.histograms + u64(part.piece) * DIGITS;
    for (unsigned digit = threadIdx.x; digit < DIGITS; digit += blockDim.x) {
        if (histogram[digit]) {
            atomicAdd(all + digit, histogram[digit]);
        }
    }
}
