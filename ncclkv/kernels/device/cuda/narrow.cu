// Round gradients to 16 bits, and keep what this loses, as kernels/host/narrow.py does.

#include "blocks.cuh"
#include "elements.cuh"

struct Roundings {
    float* residual[MAX_PIECES];  // null: what the rounding loses is not kept
    u64 start[MAX_PIECES];        // the first gradient and word of a piece
    u64 size[MAX_PIECES];
    const GRADIENT* gradients;
    ELEMENT* words;
    const int* skip;  // null, or the address of a flag: round only if the flag is 0
    unsigned first[MAX_PIECES + 1];
    unsigned count;
};
static_assert(sizeof(Roundings) == ARGUMENT_BYTES, "not the layout that the launch fills");

// Infinity and NaN have none: their difference to themselves is NaN.
__device__ inline bool is_finite(float x) { return x - x == 0; }

extern "C" __global__ void narrow(const __grid_constant__ Roundings roundings) {
    if (roundings.skip && *roundings.skip) {
        return;
    }
    const unsigned i = piece_of(roundings.first, roundings.count, blockIdx.x);
    const u64 done = u64(blockIdx.x - roundings.first[i]) * PER_BLOCK;
    const u64 left = roundings.size[i] - done;
    const u64 size = left < PER_BLOCK ? left : PER_BLOCK;
    const GRADIENT* __restrict__ gradients = roundings.gradients + roundings.start[i] + done;
    ELEMENT* __restrict__ words = roundings.words + roundings.start[i] + done;
    if (!roundings.residual[i]) {
#pragma unroll 4
        for (u64 j = threadIdx.x; j < size; j += blockDim.x) {
            words[j] = narrow(static_cast<float>(gradients[j]));
        }
        return;
    }
    float* __restrict__ residual = roundings.residual[i] + done;
#pragma unroll 4
    for (u64 j = threadIdx.x; j < size; j += blockDim.x) {
        const float sum = residual[j] + static_cast<float>(gradients[j]);
        const ELEMENT word = narrow(sum);
        const float sent = widen(word);
        words[j] = word;
        residual[j] = is_finite(sent) ? sum - sent : 0.0f;
    }
}
