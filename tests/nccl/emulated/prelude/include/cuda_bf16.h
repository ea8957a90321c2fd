// The header of CUDA's of this name, as far as it is emulated: a bfloat16 as a number, not pairs.
#pragma once

#include "../sixteen.h"

struct __nv_bfloat16_raw {
    unsigned short x;
};

struct __nv_bfloat16 {
    unsigned short bits;

    __nv_bfloat16() = default;
    __nv_bfloat16(const __nv_bfloat16_raw& raw) : bits(raw.x) {}
    __nv_bfloat16(double x) : bits(emulated::rounded<8, 7>(x)) {}
    __nv_bfloat16(float x) {
        // By bits, since a processor that flushes subnormal numbers would do so here.
        const unsigned wide = __float_as_uint(x);
        bits = (unsigned short)(x != x ? 0x7fff : (wide + 0x7fff + (wide >> 16 & 1)) >> 16);
    }
    __nv_bfloat16(int x) : __nv_bfloat16(double(x)) {}
    __nv_bfloat16(unsigned x) : __nv_bfloat16(double(x)) {}

    static __nv_bfloat16 from_bits(unsigned short bits) { return __nv_bfloat16_raw{bits}; }
    operator __nv_bfloat16_raw() const { return {bits}; }
    operator float() const { return __uint_as_float(unsigned(bits) << 16); }
};
typedef __nv_bfloat16 nv_bfloat16;

EMULATED_SIXTEEN(__nv_bfloat16)

inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
inline __nv_bfloat16 __double2bfloat16(double x) { return x; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
    return __nv_bfloat16::from_bits(bits);
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
