// Functions of CUDA's that look at bits: "CUDA Math API", Integer Intrinsics, Type Casting.
#pragma once

#include <cstring>

namespace emulated {

template <class To, class From>
inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
}

}  // namespace emulated

inline int __float_as_int(float x) { return emulated::same_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return emulated::same_bits<unsigned>(x); }
inline float __int_as_float(int x) { return emulated::same_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emulated::same_bits<float>(x); }
inline long long __double_as_longlong(double x) { return emulated::same_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emulated::same_bits<double>(x); }
inline int __double2hiint(double x) { return int(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return int(__double_as_longlong(x)); }
inline double __hiloint2double(int high, int low) {
    return __longlong_as_double((long long)high << 32 | (unsigned)low);
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }

inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1) << (31 - i);
    return reversed;
}
inline unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev(unsigned(x)) << 32 | __brev(unsigned(x >> 32));
}

// Four of the bytes of y and x, chosen by the lowest three bits of each half-byte of s.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
    const unsigned long long bytes = (unsigned long long)y << 32 | x;
    unsigned chosen = 0;
    for (int i = 0; i < 4; ++i) chosen |= unsigned(bytes >> (8 * (s >> 4 * i & 7)) & 255) << 8 * i;
    return chosen;
}

inline int __mulhi(int x, int y) { return int((long long)x * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) {
    return unsigned((unsigned long long)x * y >> 32);
}
inline long long __mul64hi(long long x, long long y) { return (long long)((__int128)x * y >> 64); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return unsigned(((unsigned long long)high << 32 | low) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return unsigned(((unsigned long long)high << 32 | low) >> (by & 31));
}
