// Decode sums of levels from counts of WIDTH bits each.

#include "codes.cuh"

struct Packed {
    const unsigned char* packed;
    float* out;
    u64 size;
    Scale scale;
};
static_assert(sizeof(Packed) == ARGUMENT_BYTES, "not the layout that the launch fills");

__device__ inline unsigned count_at(const unsigned char* packed, u64 i) {
#if WIDTH == 16
    return packed[2 * i] | packed[2 * i + 1] << 8;
#else
    constexpr int WITHIN = 8 / WIDTH;
    return packed[i / WITHIN] >> (8 - WIDTH * (i % WITHIN + 1)) & ((1 << WIDTH) - 1);
#endif
}

extern "C" __global__ void unpack(const __grid_constant__ Packed counts) {
    const u64 stride = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < counts.size; i += stride) {
        counts.out[i] = scaled(count_at(counts.packed, i), counts.scale);
    }
}
