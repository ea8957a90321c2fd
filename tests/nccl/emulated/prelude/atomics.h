// Atomic functions: "CUDA C++ Programming Guide", Atomic Functions.
//
// Kernels of two streams run at once, so these are atomic for all threads of the host.
#pragma once

#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace emulated {

// Put `step(old)` in the place of what is there; return the old value.
template <class Word, class T, class Step>
inline T exchanged(T* where, Step step) {
    static_assert(sizeof(Word) == sizeof(T));
    Word* words = reinterpret_cast<Word*>(where);
    Word before = __atomic_load_n(words, __ATOMIC_RELAXED);
    for (;;) {
        T old;
        std::memcpy(&old, &before, sizeof(T));
        const T value = step(old);
        Word after;
        std::memcpy(&after, &value, sizeof(T));
        if (__atomic_compare_exchange_n(words, &before, after, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
            return old;
        }
    }
}

}  // namespace emulated

// The functions for a grid, and those for a block and for the system, which are the same here.
#define EMULATED_ATOMIC(NAME, T, WORD, VALUE)                                                     \
    inline T NAME(T* where, T x) {                                                                \
        return emulated::exchanged<WORD>(where, [=](T old) -> T { return VALUE; });               \
    }                                                                                             \
    inline T NAME##_block(T* where, T x) { return NAME(where, x); }                               \
    inline T NAME##_system(T* where, T x) { return NAME(where, x); }

#define EMULATED_ATOMICS(NAME, VALUE)                                                             \
    EMULATED_ATOMIC(NAME, int, unsigned, VALUE)                                                   \
    EMULATED_ATOMIC(NAME, unsigned, unsigned, VALUE)                                              \
    EMULATED_ATOMIC(NAME, unsigned long long, unsigned long long, VALUE)

EMULATED_ATOMICS(atomicAdd, old + x)
EMULATED_ATOMIC(atomicAdd, float, unsigned, old + x)
EMULATED_ATOMIC(atomicAdd, double, unsigned long long, old + x)
EMULATED_ATOMIC(atomicAdd, __half, unsigned short, old + x)
EMULATED_ATOMIC(atomicAdd, __nv_bfloat16, unsigned short, old + x)
EMULATED_ATOMIC(atomicSub, int, unsigned, old - x)
EMULATED_ATOMIC(atomicSub, unsigned, unsigned, old - x)
EMULATED_ATOMICS(atomicExch, x)
EMULATED_ATOMIC(atomicExch, float, unsigned, x)
EMULATED_ATOMICS(atomicMin, old < x ? old : x)
EMULATED_ATOMIC(atomicMin, long long, unsigned long long, old < x ? old : x)
EMULATED_ATOMICS(atomicMax, old < x ? x : old)
EMULATED_ATOMIC(atomicMax, long long, unsigned long long, old < x ? x : old)
EMULATED_ATOMIC(atomicInc, unsigned, unsigned, old >= x ? 0 : old + 1)
EMULATED_ATOMIC(atomicDec, unsigned, unsigned, old == 0 || old > x ? x : old - 1)
EMULATED_ATOMICS(atomicAnd, old & x)
EMULATED_ATOMICS(atomicOr, old | x)
EMULATED_ATOMICS(atomicXor, old ^ x)

#undef EMULATED_ATOMICS
#undef EMULATED_ATOMIC

#define EMULATED_CAS(T)                                                                           \
    inline T atomicCAS(T* where, T compared, T x) {                                               \
        __atomic_compare_exchange_n(where, &compared, x, false, __ATOMIC_RELAXED,                 \
                                    __ATOMIC_RELAXED);                                            \
        return compared;                                                                          \
    }                                                                                             \
    inline T atomicCAS_block(T* where, T compared, T x) { return atomicCAS(where, compared, x); } \
    inline T atomicCAS_system(T* where, T compared, T x) { return atomicCAS(where, compared, x); }

EMULATED_CAS(int)
EMULATED_CAS(unsigned)
EMULATED_CAS(unsigned long long)
EMULATED_CAS(unsigned short)

#undef EMULATED_CAS
