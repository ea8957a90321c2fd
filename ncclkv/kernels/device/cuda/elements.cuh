// ELEMENT is the type of an array, and WORKING the type of its arithmetic: float for 16-bit floats,
// 64 bits for averages of integers, else the same type.

#pragma once

#ifdef HEADER
#include HEADER
#endif

template <class Real>
struct Complex {
    Real real, imag;
};

__device__ inline WORKING widen(ELEMENT x) { return static_cast<WORKING>(x); }

// Rounds to nearest, ties to even.
__device__ inline ELEMENT narrow(WORKING x) { return static_cast<ELEMENT>(x); }
