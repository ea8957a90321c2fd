// Functions on numbers that CUDA has beside those of C++: "CUDA Math API", Mathematical Functions,
// Single and Double Precision Intrinsics, Type Casting Intrinsics.
//
// Those of the C library are exact to about a unit of the last place, as CUDA's are, but not in the
// same bits.  Approximate intrinsics are computed in full precision.
#pragma once

#include <math.h>
#include <stdlib.h>

#include <cmath>

#include "bessel.h"

namespace emulated {

template <class T>
constexpr T smaller(T a, T b) { return b < a ? b : a; }
template <class T>
constexpr T larger(T a, T b) { return a < b ? b : a; }

}  // namespace emulated

// One for each pair of types, as CUDA has: a signed number meets an unsigned one as unsigned.
#define EMULATED_EXTREMES(A, B, RESULT)                                                           \
    inline RESULT min(A a, B b) { return emulated::smaller<RESULT>(a, b); }                       \
    inline RESULT max(A a, B b) { return emulated::larger<RESULT>(a, b); }

#define EMULATED_INTEGERS(SIGNED, UNSIGNED)                                                       \
    EMULATED_EXTREMES(SIGNED, SIGNED, SIGNED)                                                     \
    EMULATED_EXTREMES(UNSIGNED, UNSIGNED, UNSIGNED)                                               \
    EMULATED_EXTREMES(SIGNED, UNSIGNED, UNSIGNED)                                                 \
    EMULATED_EXTREMES(UNSIGNED, SIGNED, UNSIGNED)

EMULATED_INTEGERS(int, unsigned)
EMULATED_INTEGERS(long, unsigned long)
EMULATED_INTEGERS(long long, unsigned long long)

#undef EMULATED_INTEGERS
#undef EMULATED_EXTREMES

// A number wins over NaN.
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(double(a), b); }
inline double min(double a, float b) { return fmin(a, double(b)); }
inline double max(float a, double b) { return fmax(double(a), b); }
inline double max(double a, float b) { return fmax(a, double(b)); }

inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float rsqrt(float x) { return float(1 / std::sqrt(double(x))); }
inline float rsqrtf(float x) { return rsqrt(x); }
inline double rcbrt(double x) { return 1 / std::cbrt(x); }
inline float rcbrtf(float x) { return 1 / std::cbrt(x); }
inline double sinpi(double x) { return std::sin(M_PI * std::fmod(x, 2)); }
inline double cospi(double x) { return std::cos(M_PI * std::fmod(x, 2)); }
inline float sinpif(float x) { return float(sinpi(x)); }
inline float cospif(float x) { return float(cospi(x)); }
inline float exp10(float x) { return exp10f(x); }
inline float saturate(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
inline float __saturatef(float x) { return saturate(x); }
inline double norm3d(double a, double b, double c) { return std::hypot(a, b, c); }
inline float norm3df(float a, float b, float c) { return std::hypot(a, b, c); }
inline double normcdf(double x) { return 0.5 * std::erfc(-x * M_SQRT1_2); }
inline float normcdff(float x) { return float(normcdf(x)); }

inline double cyl_bessel_i0(double x) { return emulated::bessel_i0(x); }
inline double cyl_bessel_i1(double x) { return emulated::bessel_i1(x); }
inline float cyl_bessel_i0f(float x) { return float(cyl_bessel_i0(x)); }
inline float cyl_bessel_i1f(float x) { return float(cyl_bessel_i1(x)); }

// Each is rounded once, to nearest, and never fused with another.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frsqrt_rn(float a) { return rsqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __drcp_rn(double a) { return 1 / a; }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __log10f(float x) { return std::log10(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanf(float x) { return std::tan(x); }

inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return int(x); }
inline int __float2int_rd(float x) { return int(std::floor(x)); }
inline int __float2int_ru(float x) { return int(std::ceil(x)); }
inline int __double2int_rn(double x) { return int(std::nearbyint(x)); }
inline int __double2int_rz(double x) { return int(x); }
inline long long __float2ll_rn(float x) { return (long long)std::nearbyint(x); }
inline long long __double2ll_rn(double x) { return (long long)std::nearbyint(x); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __ll2float_rn(long long x) { return float(x); }
inline float __double2float_rn(double x) { return float(x); }
inline double __int2double_rn(int x) { return x; }
inline double __ll2double_rn(long long x) { return double(x); }
