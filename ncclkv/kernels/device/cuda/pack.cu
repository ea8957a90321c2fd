// Count the codes of all senders, and pack the counts into WIDTH bits each.

#include "counted.cuh"

struct Counts {
    Payloads payloads;
    unsigned char* packed;
    u64 size;
};
static_assert(sizeof(Counts) == ARGUMENT_BYTES, "not the layout that the launch fills");
static_assert(PER_BYTE * WIDTH % 8 == 0, "a thread writes whole bytes");

// Bytes of the counts of a thread.
constexpr int PACKED = PER_BYTE * WIDTH / 8;

extern "C" __global__ void pack(const __grid_constant__ Counts sums) {
    const u64 bytes = (sums.size + PER_BYTE - 1) / PER_BYTE;
    const u64 packed = (sums.size * WIDTH + 7) / 8;
    const u64 stride = u64(gridDim.x) * blockDim.x;
    for (u64 j = u64(blockIdx.x) * blockDim.x + threadIdx.x; j < bytes; j += stride) {
        unsigned char* to = sums.packed + j * PACKED;
        unsigned counts[PER_BYTE] = {};
#if WIDTH == 16
        // Only counts of this width are those of more than one launch.
        for (int k = 0; sums.payloads.continues && k < PER_BYTE; ++k) {
            const bool has = j * PER_BYTE + k < sums.size;
            counts[k] = has ? to[2 * k] | to[2 * k + 1] << 8 : 0;
        }
#endif
        add_levels(sums.payloads, j, counts);
        unsigned char kept[PACKED] = {};
#pragma unroll
        for (int k = 0; k < PER_BYTE; ++k) {
            if (j * PER_BYTE + k >= sums.size) {
                break;
            }
#if WIDTH == 16
            kept[2 * k] = counts[k] & 255;
            kept[2 * k + 1] = counts[k] >> 8;
#else
            constexpr int WITHIN = 8 / WIDTH;
            kept[k / WITHIN] |= counts[k] << (8 - WIDTH * (k % WITHIN + 1));
#endif
        }
        for (int b = 0; b < PACKED && j * PACKED + b < packed; ++b) {
            to[b] = kept[b];
        }
    }
}
