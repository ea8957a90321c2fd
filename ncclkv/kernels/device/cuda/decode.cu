// Decode the sum of the codes of all senders.

#include "counted.cuh"

struct Sums {
    Payloads payloads;
    float* out;  // counts between two launches, which are exact in float32
    u64 size;
    u64 first;  // elements in the payloads before the first of `out`
    Scale scale;
};
static_assert(sizeof(Sums) == ARGUMENT_BYTES, "not the layout that the launch fills");

extern "C" __global__ void decode(const __grid_constant__ Sums sums) {
    const u64 end = sums.first + sums.size;
    const u64 bytes = (end + PER_BYTE - 1) / PER_BYTE;
    const bool aligned = sums.first == 0 && reinterpret_cast<u64>(sums.out) % 16 == 0;
    const u64 stride = u64(gridDim.x) * blockDim.x;
    for (u64 j = u64(blockIdx.x) * blockDim.x + threadIdx.x; j < bytes; j += stride) {
        const u64 low = j * PER_BYTE;
        unsigned counts[PER_BYTE];
#pragma unroll
        for (int k = 0; k < PER_BYTE; ++k) {
            const bool has = sums.payloads.continues && low + k >= sums.first && low + k < end;
            counts[k] = has ? unsigned(sums.out[low + k - sums.first]) : 0;
        }
        add_levels(sums.payloads, j, counts);
        alignas(16) float values[PER_BYTE];
#pragma unroll
        for (int k = 0; k < PER_BYTE; ++k) {
            values[k] = sums.payloads.ends ? scaled(counts[k], sums.scale) : float(counts[k]);
        }
        if (aligned && low + PER_BYTE <= end) {
            copy_lanes(values, sums.out + low);
            continue;
        }
#pragma unroll
        for (int k = 0; k < PER_BYTE; ++k) {
            if (low + k >= sums.first && low + k < end) {
                sums.out[low + k - sums.first] = values[k];
            }
        }
    }
}
