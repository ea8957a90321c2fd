// Move the largest sums to the payload, in ascending order of their indices.

#include "largest.cuh"

constexpr unsigned LANES = 32;
constexpr unsigned WARPS = THREADS / LANES;

extern "C" __global__ void top_take(const __grid_constant__ Takes takes) {
    if (takes.skip && *takes.skip) {
        return;
    }
    const Part part(takes);
    const unsigned i = part.piece;
    float* residual = takes.residual[i] + part.begin;
    int* indices = reinterpret_cast<int*>(takes.bytes + takes.payload[i]);
    float* values = reinterpret_cast<float*>(indices + takes.wanted[i]);
    const Least least = takes.least[i];
    Counts before = takes.counts[blockIdx.x];
    const unsigned warp = threadIdx.x / LANES;
    const unsigned lower = (1u << threadIdx.x % LANES) - 1;
    __shared__ unsigned above[WARPS], equal[WARPS];
    for (u64 low = 0; low < part.size; low += THREADS) {
        const u64 j = low + threadIdx.x;
        const float sum = j < part.size ? residual[j] : 0.0f;
        const unsigned size = size_of(sum);
        const bool is_above = j < part.size && size > least.size;
        const bool is_equal = j < part.size && size == least.size;
        const unsigned mine_above = __ballot_sync(~0u, is_above);
        const unsigned mine_equal = __ballot_sync(~0u, is_equal);
        if (threadIdx.x % LANES == 0) {
            above[warp] = mine_above;
            equal[warp] = mine_equal;
        }
        __syncthreads();
        Counts own = before;
        for (unsigned other = 0; other < WARPS; ++other) {
            if (other < warp) {
                own.above += __popc(above[other]);
                own.equal += __popc(equal[other]);
            }
            before.above += __popc(above[other]);
            before.equal += __popc(equal[other]);
        }
        own.above += __popc(mine_above & lower);
        own.equal += __popc(mine_equal & lower);
        // Of equal sizes the first are sent.
        if (is_above || (is_equal && own.equal < least.wanted)) {
            const u64 place = own.above + (own.equal < least.wanted ? own.equal : least.wanted);
            indices[place] = static_cast<int>(part.begin + j);
            values[place] = sum;
            residual[j] = 0.0f;
        }
        __syncthreads();
    }
}
