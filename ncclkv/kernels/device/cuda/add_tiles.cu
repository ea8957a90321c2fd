// Add the products of tiles: each thread those of some tiles, and then one thread those of all.

#include "blocks.cuh"

struct TileSums {
    float* out[MAX_PIECES];
    u64 size[MAX_PIECES];     // of the product of a tile
    u64 tiles[MAX_PIECES];    // that are added
    u64 partial[MAX_PIECES];  // the first product in the scratch memory
    const float* scratch;
    const int* skip;  // null, or the address of a flag: change nothing unless the flag is 0
    unsigned first[MAX_PIECES + 1];
    unsigned count;
};
static_assert(sizeof(TileSums) == ARGUMENT_BYTES, "not the layout that the launch fills");

constexpr unsigned PARTS = THREADS / PER_BLOCK;

extern "C" __global__ void add_tiles(const __grid_constant__ TileSums sums) {
    if (sums.skip && *sums.skip) {
        return;
    }
    const unsigned i = piece_of(sums.first, sums.count, blockIdx.x);
    const unsigned part = threadIdx.x / PER_BLOCK, lane = threadIdx.x % PER_BLOCK;
    const u64 size = sums.size[i];
    const u64 e = u64(blockIdx.x - sums.first[i]) * PER_BLOCK + lane;
    const float* products = sums.scratch + sums.partial[i] + e;
    float sum = 0;
    if (e < size) {
#pragma unroll 4
        for (u64 tile = part; tile < sums.tiles[i]; tile += PARTS) {
            sum += products[tile * size];
        }
    }
    __shared__ float parts[THREADS];
    parts[threadIdx.x] = sum;
    __syncthreads();
    if (part == 0 && e < size) {
        for (unsigned other = 1; other < PARTS; ++other) {
            sum += parts[other * PER_BLOCK + lane];
        }
        sums.out[i][e] = sum;
    }
}
