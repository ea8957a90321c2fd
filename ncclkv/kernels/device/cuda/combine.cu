// Combine equal arrays element by element, in their order.
//
// A thread has TOGETHER elements, whose loads are in flight together.
// A launch takes at most MAX_PARTS arrays.  More arrays take several launches: all but the last
// write their result to `partial`, in WORKING, and all but the first begin with `partial`.

#include "blocks.cuh"
#include "elements.cuh"

struct Parts {
    const ELEMENT* part[MAX_PARTS];
    WORKING* partial;
    ELEMENT* out;  // may be one of the parts: each element is read before it is written
    u64 size;
    u64 divisor;  // 0: no division
    unsigned count;
    unsigned continues;  // begin with `partial`
    unsigned ends;       // write the result to `out`
};
static_assert(sizeof(Parts) == ARGUMENT_BYTES, "not the layout that the launch fills");

// Integers wrap: sums and products are made modulo 2^64, then truncated.
template <class T>
__device__ inline T add(T a, T b) { return static_cast<T>(u64(a) + u64(b)); }
__device__ inline bool add(bool a, bool b) { return a || b; }
__device__ inline float add(float a, float b) { return a + b; }
__device__ inline double add(double a, double b) { return a + b; }
template <class Real>
__device__ inline Complex<Real> add(Complex<Real> a, Complex<Real> b) {
    return {a.real + b.real, a.imag + b.imag};
}

template <class T>
__device__ inline T multiply(T a, T b) { return static_cast<T>(u64(a) * u64(b)); }
__device__ inline bool multiply(bool a, bool b) { return a && b; }
__device__ inline float multiply(float a, float b) { return a * b; }
__device__ inline double multiply(double a, double b) { return a * b; }

// NaN wins; only NaN differs from itself.
template <class T>
__device__ inline T larger(T a, T b) { return a >= b || a != a ? a : b; }
template <class T>
__device__ inline T smaller(T a, T b) { return a <= b || a != a ? a : b; }

// Integers are divided toward zero, in 64 bits: the divisor may not fit a narrow type.
template <class T>
__device__ inline T divide(T total, u64 divisor) {
    if (T(-1) < T(0)) {
        return static_cast<T>(static_cast<long long>(total) / static_cast<long long>(divisor));
    }
    return static_cast<T>(static_cast<u64>(total) / divisor);
}
__device__ inline float divide(float total, u64 divisor) { return total / float(divisor); }
__device__ inline double divide(double total, u64 divisor) { return total / double(divisor); }
template <class Real>
__device__ inline Complex<Real> divide(Complex<Real> total, u64 divisor) {
    return {total.real / Real(divisor), total.imag / Real(divisor)};
}

extern "C" __global__ void combine(const __grid_constant__ Parts parts) {
    const u64 of_block = u64(TOGETHER) * blockDim.x;
    const u64 stride = gridDim.x * of_block;
    for (u64 begin = blockIdx.x * of_block + threadIdx.x; begin < parts.size; begin += stride) {
        WORKING total[TOGETHER];
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {
            const u64 i = begin + k * blockDim.x;
            if (i < parts.size) {
                total[k] = parts.continues ? parts.partial[i] : widen(parts.part[0][i]);
            }
        }
        for (unsigned which = parts.continues ? 0 : 1; which < parts.count; ++which) {
            const ELEMENT* part = parts.part[which];
#pragma unroll
            for (int k = 0; k < TOGETHER; ++k) {
                const u64 i = begin + k * blockDim.x;
                if (i < parts.size) {
                    total[k] = STEP(total[k], widen(part[i]));
                }
            }
        }
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {
            const u64 i = begin + k * blockDim.x;
            if (i < parts.size) {
                if (!parts.ends) {
                    parts.partial[i] = total[k];
                } else {
                    parts.out[i] =
                        narrow(parts.divisor ? divide(total[k], parts.divisor) : total[k]);
                }
            }
        }
    }
}
