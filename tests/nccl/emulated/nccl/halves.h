// Numbers of 16 bits, and float.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated_nccl {

inline float as_float(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline std::uint32_t as_bits(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

struct Half {
    std::uint16_t bits;
};

struct Bfloat16 {
    std::uint16_t bits;
};

inline float widen(Half half) {
    const std::uint32_t sign = (half.bits & 0x8000u) << 16;
    const std::uint32_t magnitude = half.bits & 0x7fffu;
    if (magnitude >= 0x7c00) return as_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    // As the bits of a float, the magnitude is too small by 2^112; this is exact, subnormal or not.
    return as_float(as_bits(as_float(magnitude << 13) * 0x1p112f) | sign);
}

inline float widen(Bfloat16 number) {
    return as_float(static_cast<std::uint32_t>(number.bits) << 16);
}

// Both round to the nearest, ties to even; the one NaN is that of CUDA, 0x7fff.
inline void narrow(float value, Half& half) {
    const std::uint32_t sign = as_bits(value) >> 16 & 0x8000;
    const float magnitude = std::fabs(value);
    std::uint32_t bits;
    if (std::isnan(value)) {
        half.bits = 0x7fff;
        return;
    }
    if (magnitude >= 65520.0f) {
        bits = 0x7c00;
    } else if (magnitude < 0x1p-14f) {
        bits = static_cast<std::uint32_t>(std::nearbyint(magnitude * 0x1p24f));
    } else {
        const std::uint32_t wide = as_bits(magnitude);
        bits = (wide + 0xfff + (wide >> 13 & 1) - (112u << 23)) >> 13;
    }
    half.bits = static_cast<std::uint16_t>(sign | bits);
}

inline void narrow(float value, Bfloat16& number) {
    const std::uint32_t wide = as_bits(value);
    if (std::isnan(value)) number.bits = 0x7fff;
    else number.bits = static_cast<std::uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

}  // namespace emulated_nccl
