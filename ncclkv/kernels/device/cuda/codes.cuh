// Codes of BITS bits, the first in a byte's most significant bits, and the values of their sums.

#pragma once

#include "blocks.cuh"

#ifdef BITS
constexpr int PER_BYTE = 8 / BITS;

// LEVELS has the level of each code in four bits, that of code 0 in the lowest.
__device__ inline unsigned level(unsigned byte, int k) {
    const unsigned code = byte >> (8 - BITS * (k + 1)) & ((1u << BITS) - 1);
    return LEVELS >> (4 * code) & 15;
}

// Copy the numbers of a byte, between addresses that are multiples of 16.
__device__ inline void copy_lanes(const float* from, float* to) {
#pragma unroll
    for (int k = 0; k < PER_BYTE; k += 4) {
        *reinterpret_cast<float4*>(to + k) = *reinterpret_cast<const float4*>(from + k);
    }
}
#endif

// The value of a sum of levels is (count + offset) * factor, divided unless the divisor is 0.
struct Scale {
    float offset, factor, divisor;
};

__device__ inline float scaled(unsigned count, const Scale& scale) {
    const float value = (float(count) + scale.offset) * scale.factor;
    return scale.divisor != 0 ? value / scale.divisor : value;
}
