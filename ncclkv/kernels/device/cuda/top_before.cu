// Replace the counts of each block by those of all blocks before it; one block of threads has a key.

#include "largest.cuh"

extern "C" __global__ void top_before(const __grid_constant__ Takes takes) {
    if (takes.skip && *takes.skip) {
        return;
    }
    const unsigned i = blockIdx.x;
    const unsigned blocks = takes.first[i + 1] - takes.first[i];
    Counts* counts = takes.counts + takes.first[i];
    const unsigned each = (blocks + THREADS - 1) / THREADS;
    const unsigned begin = threadIdx.x * each < blocks ? threadIdx.x * each : blocks;
    const unsigned end = begin + each < blocks ? begin + each : blocks;
    __shared__ Counts totals[THREADS];
    Counts total = {};
    for (unsigned block = begin; block < end; ++block) {
        total.above += counts[block].above;
        total.equal += counts[block].equal;
    }
    totals[threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.x == 0) {
        Counts before = {};
        for (unsigned thread = 0; thread < THREADS; ++thread) {
            const Counts own = totals[thread];
            totals[thread] = before;
            before.above += own.above;
            before.equal += own.equal;
        }
    }
    __syncthreads();
    Counts before = totals[threadIdx.x];
    for (unsigned block = begin; block < end; ++block) {
        const Counts own = counts[block];
        counts[block] = before;
        before.above += own.above;
        before.equal += own.equal;
    }
}
