// Numbers of 16 bits as wider ones; nothing is rounded.

#include "blocks.cuh"
#include "elements.cuh"

struct Widening {
    const ELEMENT* words;
    OUT* out;
    u64 size;
};
static_assert(sizeof(Widening) == ARGUMENT_BYTES, "not the layout that the launch fills");

extern "C" __global__ void widen(const __grid_constant__ Widening widening) {
    const ELEMENT* __restrict__ words = widening.words;
    OUT* __restrict__ out = widening.out;
    const u64 stride = u64(gridDim.x) * blockDim.x;
#pragma unroll 4
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < widening.size; i += stride) {
        out[i] = static_cast<OUT>(widen(words[i]));
    }
}
