// Floats of 16 bits, as integers: what the two headers of CUDA's have in common.
//
// Rounding from "CUDA Math API", Half Precision Conversion and Data Movement: to nearest, ties to
// even.  NaN becomes 0x7fff: "PTX ISA", cvt.
#pragma once

#include "bits.h"

#include <cmath>
#include <type_traits>

namespace emulated {

// Round to a sign, EXPONENT bits and MANTISSA bits.
template <int EXPONENT, int MANTISSA>
inline unsigned short rounded(double x) {
    constexpr unsigned long long bias = (1 << (EXPONENT - 1)) - 1;
    constexpr int dropped = 52 - MANTISSA;
    constexpr unsigned infinity = ((1 << EXPONENT) - 1) << MANTISSA;
    if (x != x) return 0x7fff;
    const auto bits = same_bits<unsigned long long>(x);
    const unsigned sign = bits >> 63 << 15;
    const unsigned long long magnitude = bits << 1 >> 1;
    if (magnitude < (1024 - bias) << 52) {
        // Subnormal numbers are multiples of one quantum.  Rounded up, the largest is normal.
        const double quanta = std::fabs(x) * std::ldexp(1.0, int(bias) - 1 + MANTISSA);
        return sign | unsigned(std::nearbyint(quanta));
    }
    const unsigned long long rebased = magnitude - ((1023 - bias) << 52);
    const unsigned long long half = (1ull << (dropped - 1)) - 1 + (rebased >> dropped & 1);
    const unsigned long long result = (rebased + half) >> dropped;
    return sign | unsigned(result < infinity ? result : infinity);
}

}  // namespace emulated

// Arithmetic is that of single precision, rounded once more, which gives the same bits: single
// precision has more than twice as many.
#define EMULATED_SIXTEEN(T)                                                                       \
    inline T operator+(T a, T b) { return T(float(a) + float(b)); }                               \
    inline T operator-(T a, T b) { return T(float(a) - float(b)); }                               \
    inline T operator*(T a, T b) { return T(float(a) * float(b)); }                               \
    inline T operator/(T a, T b) { return T(float(a) / float(b)); }                               \
    inline T& operator+=(T& a, T b) { return a = a + b; }                                         \
    inline T& operator-=(T& a, T b) { return a = a - b; }                                         \
    inline T& operator*=(T& a, T b) { return a = a * b; }                                         \
    inline T& operator/=(T& a, T b) { return a = a / b; }                                         \
    inline T operator-(T a) { return T::from_bits((unsigned short)(a.bits ^ 0x8000)); }           \
    inline bool operator==(T a, T b) { return float(a) == float(b); }                             \
    inline bool operator!=(T a, T b) { return float(a) != float(b); }                             \
    inline bool operator<(T a, T b) { return float(a) < float(b); }                               \
    inline bool operator>(T a, T b) { return float(a) > float(b); }                               \
    inline bool operator<=(T a, T b) { return float(a) <= float(b); }                             \
    inline bool operator>=(T a, T b) { return float(a) >= float(b); }                             \
    inline T __hadd(T a, T b) { return a + b; }                                                   \
    inline T __hsub(T a, T b) { return a - b; }                                                   \
    inline T __hmul(T a, T b) { return a * b; }                                                   \
    inline T __hdiv(T a, T b) { return a / b; }                                                   \
    inline T __hneg(T a) { return -a; }                                                           \
    inline T __habs(T a) { return T::from_bits((unsigned short)(a.bits & 0x7fff)); }              \
    inline bool __heq(T a, T b) { return a == b; }                                                \
    inline bool __hne(T a, T b) { return float(a) < float(b) || float(a) > float(b); }            \
    inline bool __hlt(T a, T b) { return a < b; }                                                 \
    inline bool __hgt(T a, T b) { return a > b; }                                                 \
    inline bool __hle(T a, T b) { return a <= b; }                                                \
    inline bool __hge(T a, T b) { return a >= b; }                                                \
    inline bool __hisnan(T a) { return a != a; }                                                  \
    inline int __hisinf(T a) { return std::isinf(float(a)) ? (float(a) < 0 ? -1 : 1) : 0; }       \
    inline T __hmax(T a, T b) { return T(std::fmax(float(a), float(b))); }                        \
    inline T __hmin(T a, T b) { return T(std::fmin(float(a), float(b))); }
