// Search for NaN and infinity: numbers whose exponent has all its bits set.

#include "blocks.cuh"

struct Search {
    const WORD* words;  // numbers, as unsigned integers
    int* flag;          // set to 1 if a number is found; never set to 0
    u64 size;
};
static_assert(sizeof(Search) == ARGUMENT_BYTES, "not the layout that the launch fills");

// The numbers in 16 bytes, loaded at once.
constexpr int LANES = 16 / sizeof(WORD);
struct alignas(16) Lanes {
    WORD lane[LANES];
};

__device__ inline bool is_nonfinite(WORD word) { return (word & EXPONENT) == EXPONENT; }

extern "C" __global__ void nonfinite(const __grid_constant__ Search search) {
    const u64 stride = u64(gridDim.x) * blockDim.x;
    const u64 begin = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    bool found = false;
    u64 done = 0;
    if (reinterpret_cast<u64>(search.words) % 16 == 0) {
        const Lanes* groups = reinterpret_cast<const Lanes*>(search.words);
        const u64 count = search.size / LANES;
#pragma unroll 4
        for (u64 i = begin; i < count; i += stride) {
            const Lanes group = groups[i];
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                found |= is_nonfinite(group.lane[lane]);
            }
        }
        done = count * LANES;
    }
    for (u64 i = done + begin; i < search.size; i += stride) {
        found |= is_nonfinite(search.words[i]);
    }
    // All threads write the same number.
    if (found) {
        *search.flag = 1;
    }
}
