// The header of CUDA's of this name, as far as it is emulated: a half as a number, not pairs.
#pragma once

#include "../sixteen.h"

struct __half_raw {
    unsigned short x;
};

struct __half {
    unsigned short bits;

    __half() = default;
    __half(const __half_raw& raw) : bits(raw.x) {}
    // Of integers too, as CUDA's has: those that a double does not hold are infinite here.
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
    __half(T x) : bits(emulated::rounded<5, 10>(double(x))) {}

    static __half from_bits(unsigned short bits) { return __half_raw{bits}; }
    operator __half_raw() const { return {bits}; }
    operator float() const {
        const unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31;
        const unsigned mantissa = bits & 0x3ff;
        if (exponent == 0) return __uint_as_float(sign | 0x33800000u) * mantissa;  // 2^-24
        const unsigned wide = exponent == 31 ? 255 : exponent + 112;
        return __uint_as_float(sign | wide << 23 | mantissa << 13);
    }
};
typedef __half half;

EMULATED_SIXTEEN(__half)

inline __half __float2half(float x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline __half __double2half(double x) { return x; }
inline float __half2float(__half x) { return x; }
inline __half __int2half_rn(int x) { return x; }
inline int __half2int_rz(__half x) { return int(float(x)); }
inline int __half2int_rn(__half x) { return int(std::nearbyint(float(x))); }
inline __half __ushort_as_half(unsigned short bits) { return __half::from_bits(bits); }
inline __half __short_as_half(short bits) { return __half::from_bits((unsigned short)bits); }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline short __half_as_short(__half x) { return short(x.bits); }
inline __half __hfma(__half a, __half b, __half c) {
    // The product and the sum are exact, or nearly so: more bits than a half can tell apart.
    return double(a) * double(b) + double(c);
}
inline __half hsqrt(__half x) { return std::sqrt(float(x)); }
