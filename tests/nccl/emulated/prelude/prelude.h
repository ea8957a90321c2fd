// What CUDA C++ has without an include, for g++: kernels.py puts it before each source.
//
// "CUDA C++ Programming Guide", C++ Language Extensions.  What is not here does not compile, and
// g++ says its name.
#pragma once

// Without the special functions of C++17, <cmath> of libstdc++ is a fifth as long.
#include <bits/c++config.h>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <array>
#include <initializer_list>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 0

// kernel_text.py looks for kernels by this attribute, which g++ does not know.
#define __global__ __attribute__((emulated_kernel))
#define __device__
#define __host__
#define __constant__
#define __shared__ static thread_local __attribute__((aligned(16)))
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))

#include "vectors.h"

// Of the thread that runs; each of the host's threads may run another kernel.
static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;

#include "arithmetic.h"
#include "atomics.h"
#include "bits.h"
#include "warps.h"

template <class T>
inline T __ldg(const T* from) { return *from; }

// 719 cudaErrorLaunchFailure, 710 cudaErrorAssert.
inline void __trap() { emulated::fail(719, "__trap"); }
#define assert(condition)                                                                         \
    ((condition) ? void(0) : emulated::fail(710, "assertion '" #condition "' failed"))

inline long long clock64() { return emulated::ticks(); }
// The C library has another function of this name.
#define clock() int(emulated::ticks())
inline void __nanosleep(unsigned ns) { emulated::sleep(ns); }

namespace emulated {

// What is behind `extern __shared__ T name[]`, which becomes a pointer.
struct DynamicShared {
    template <class T>
    operator T*() const { return static_cast<T*>(dynamic_shared_memory()); }
};

template <class T>
struct Stored {
    alignas(T) unsigned char bytes[sizeof(T)];
};

template <class Number>
inline uint3 coordinates(Number number, dim3 size) {
    if (number < size.x) return {unsigned(number), 0, 0};
    const Number row = number / size.x;
    return {unsigned(number % size.x), unsigned(row % size.y), unsigned(row / size.y)};
}

// A kernel with its arguments.  They are copied, since those of a launch may be unaligned.
template <class... Arguments>
class Call {
public:
    Call(void (*kernel)(Arguments...), void** from) : kernel_(kernel) {
        copy(from, std::index_sequence_for<Arguments...>());
    }
    static void begin_block(unsigned long long block) { blockIdx = coordinates(block, gridDim); }
    static void run_thread(void* call, unsigned thread) {
        threadIdx = coordinates(thread, blockDim);
        static_cast<Call*>(call)->run(std::index_sequence_for<Arguments...>());
    }

private:
    template <std::size_t... N>
    void copy(void** from, std::index_sequence<N...>) {
        (memcpy(std::get<N>(arguments_).bytes, from[N], sizeof(Arguments)), ...);
    }
    template <std::size_t... N>
    void run(std::index_sequence<N...>) {
        kernel_(*reinterpret_cast<std::remove_cv_t<Arguments>*>(std::get<N>(arguments_).bytes)...);
    }

    void (*kernel_)(Arguments...);
    std::tuple<Stored<std::remove_cv_t<Arguments>>...> arguments_;
};

template <class... Arguments>
int launch(const char* name, void (*kernel)(Arguments...), bool flushes, const Launch* launch,
           void** arguments, const char** words) {
    gridDim = {launch->grid[0], launch->grid[1], launch->grid[2]};
    blockDim = {launch->block[0], launch->block[1], launch->block[2]};
    Call<Arguments...> call(kernel, arguments);
    return run({name, *launch, flushes, &call.begin_block, &call.run_thread, &call}, words);
}

template <class... Arguments>
constexpr auto sizes(void (*)(Arguments...)) {
    return std::array<Argument, sizeof...(Arguments) + 1>{Argument{sizeof(Arguments)}...};
}

}  // namespace emulated

// Words of CUDA C++ that cannot run here, so that g++ names them.
#define asm inline_PTX_is_not_emulated
#define __asm inline_PTX_is_not_emulated
#define __asm__ inline_PTX_is_not_emulated
#define __managed__ managed_variables_are_not_emulated
#define cudaTextureObject_t textures_are_not_emulated
#define cudaSurfaceObject_t surfaces_are_not_emulated
