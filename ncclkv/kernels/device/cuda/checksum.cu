// Checksums of many arrays, as in kernels/host/checksum.py.

#include "blocks.cuh"

struct Sums {
    const unsigned char* source[MAX_PIECES];
    u64 nbytes[MAX_PIECES];
    u64* out;  // a zero for each source
    unsigned first[MAX_PIECES + 1];
    unsigned count;
};
static_assert(sizeof(Sums) == ARGUMENT_BYTES, "not the layout that the launch fills");

__device__ inline u64 mixed(u64 x) {
    x ^= x >> 32;
    x *= FIRST;
    x ^= x >> 29;
    return x * SECOND;
}

// Up to eight bytes at any address, the lowest first.
__device__ inline u64 joined(const unsigned char* bytes, u64 count) {
    u64 word = 0;
    for (u64 i = 0; i < count && i < sizeof(u64); ++i) {
        word |= u64(bytes[i]) << (8 * i);
    }
    return word;
}

extern "C" __global__ void checksum(const __grid_constant__ Sums sums) {
    const unsigned i = piece_of(sums.first, sums.count, blockIdx.x);
    const u64 block = blockIdx.x - sums.first[i];
    const u64 left = sums.nbytes[i] - block * PER_BLOCK;
    const u64 nbytes = left < PER_BLOCK ? left : PER_BLOCK;
    const unsigned char* bytes = sums.source[i] + block * PER_BLOCK;
    const u64 whole = reinterpret_cast<u64>(bytes) % sizeof(u64) == 0 ? nbytes / sizeof(u64) : 0;
    const u64* words = reinterpret_cast<const u64*>(bytes);
    u64 total = 0;
#pragma unroll 8
    for (u64 j = threadIdx.x; j < whole; j += blockDim.x) {
        total += mixed(words[j] + (j + 1) * STEP);
    }
    for (u64 j = whole + threadIdx.x; j * sizeof(u64) < nbytes; j += blockDim.x) {
        const u64 word = joined(bytes + j * sizeof(u64), nbytes - j * sizeof(u64));
        total += mixed(word + (j + 1) * STEP);
    }
    // One addition for a block: additions to one address take turns.
    __shared__ u64 totals[THREADS];
    totals[threadIdx.x] = total;
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            totals[threadIdx.x] += totals[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        atomicAdd(sums.out + i, totals[0] * ((2 * block + 1) * FACTOR));
    }
}
