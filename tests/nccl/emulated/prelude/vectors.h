// The vector types that CUDA has without an include: float4, uint2, dim3 and so on.
//
// Alignment from "CUDA C++ Programming Guide", Built-in Vector Types.
#pragma once

#define EMULATED_VECTORS(NAME, TYPE)                                                              \
    struct NAME##1 { TYPE x; };                                                                   \
    struct alignas(2 * sizeof(TYPE)) NAME##2 { TYPE x, y; };                                      \
    struct NAME##3 { TYPE x, y, z; };                                                             \
    struct alignas(sizeof(TYPE) < 4 ? 4 * sizeof(TYPE) : 16) NAME##4 { TYPE x, y, z, w; };        \
    inline NAME##1 make_##NAME##1(TYPE x) { return {x}; }                                         \
    inline NAME##2 make_##NAME##2(TYPE x, TYPE y) { return {x, y}; }                              \
    inline NAME##3 make_##NAME##3(TYPE x, TYPE y, TYPE z) { return {x, y, z}; }                   \
    inline NAME##4 make_##NAME##4(TYPE x, TYPE y, TYPE z, TYPE w) { return {x, y, z, w}; }

EMULATED_VECTORS(char, signed char)
EMULATED_VECTORS(uchar, unsigned char)
EMULATED_VECTORS(short, short)
EMULATED_VECTORS(ushort, unsigned short)
EMULATED_VECTORS(int, int)
EMULATED_VECTORS(uint, unsigned)
EMULATED_VECTORS(long, long)
EMULATED_VECTORS(ulong, unsigned long)
EMULATED_VECTORS(longlong, long long)
EMULATED_VECTORS(ulonglong, unsigned long long)
EMULATED_VECTORS(float, float)
EMULATED_VECTORS(double, double)

#undef EMULATED_VECTORS

struct dim3 {
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    unsigned x, y, z;
};
