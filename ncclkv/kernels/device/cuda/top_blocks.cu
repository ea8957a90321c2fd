// Count the sums of each block that are above the least size that is sent, and those of this size.

#include "largest.cuh"

extern "C" __global__ void top_blocks(const __grid_constant__ Takes takes) {
    if (takes.skip && *takes.skip) {
        return;
    }
    __shared__ unsigned above, equal;
    if (threadIdx.x == 0) {
        above = equal = 0;
    }
    __syncthreads();
    const Part part(takes);
    const float* residual = takes.residual[part.piece] + part.begin;
    const unsigned least = takes.least[part.piece].size;
    unsigned larger = 0, same = 0;
    for (u64 j = threadIdx.x; j < part.size; j += blockDim.x) {
        const unsigned size = size_of(residual[j]);
        larger += size > least;
        same += size == least;
    }
    atomicAdd(&above, larger);
    atomicAdd(&equal, same);
    __syncthreads();
    if (threadIdx.x == 0) {
        takes.counts[blockIdx.x] = {above, equal};
    }
}
