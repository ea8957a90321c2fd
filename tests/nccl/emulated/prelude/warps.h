// Barriers, votes and shuffles: "CUDA C++ Programming Guide", Synchronization Functions, Warp Vote
// Functions, Warp Match Functions, Warp Reduce Functions, Warp Shuffle Functions.
//
// A thread that waits gives way to others, so it takes its index up again when it goes on.
#pragma once

#include <cstring>
#include <type_traits>

#include "threads.h"

constexpr int warpSize = 32;

namespace emulated {

// The lanes that came to a meeting of a warp, and what each of them gave.
template <class T>
struct Meeting {
    static_assert(sizeof(T) <= sizeof(Bits), "a lane gives at most 8 bytes");

    Meeting(const char* function, unsigned mask, T value) {
        const uint3 own = threadIdx;
        Bits given = 0;
        std::memcpy(&given, &value, sizeof(T));
        lanes = meet_warp(function, mask, given);
        threadIdx = own;
    }

    bool has(unsigned lane) const { return lanes >> lane & 1; }
    // What a lane gave.  A lane that did not come has no value: poison is not 0.
    T operator[](unsigned lane) const {
        Bits given = 0xA5A5A5A5A5A5A5A5;
        if (has(lane)) given = given_by(lane);
        T value;
        std::memcpy(&value, &given, sizeof(T));
        return value;
    }
    // A step over what all lanes gave, in their order.
    template <class Result, class Step>
    Result fold(Result total, Step step) const {
        for (unsigned lane = 0; lane < 32; ++lane) {
            if (has(lane)) total = step(total, (*this)[lane], lane);
        }
        return total;
    }

    unsigned lanes;
};

inline unsigned voted(const char* function, bool vote) {
    const uint3 own = threadIdx;
    const unsigned votes = meet_block(function, vote);
    threadIdx = own;
    return votes;
}

inline unsigned ballot(const char* function, unsigned mask, bool vote) {
    return Meeting<bool>(function, mask, vote).fold(0u, [](unsigned total, bool x, unsigned lane) {
        return total | unsigned(x) << lane;
    });
}

// The value of the lane that `source` chooses.  It is given the own lane, and the first and the end
// of the part of the warp that has it.
template <class T, class Source>
inline T shuffled(const char* function, unsigned mask, T value, int width, Source source) {
    const Meeting<T> meeting(function, mask, value);
    const int own = int(own_lane()), first = own & ~(width - 1);
    return meeting[unsigned(source(own, first, first + width))];
}

template <class T, class Step>
inline T reduced(const char* function, unsigned mask, T first, T value, Step step) {
    return Meeting<T>(function, mask, value).fold(first, [=](T total, T x, unsigned) {
        return T(step(total, x));
    });
}

}  // namespace emulated

inline void __syncthreads() { emulated::voted("__syncthreads", false); }
inline int __syncthreads_count(int x) { return int(emulated::voted("__syncthreads_count", x)); }
inline int __syncthreads_or(int x) { return emulated::voted("__syncthreads_or", x) != 0; }
inline int __syncthreads_and(int x) { return emulated::voted("__syncthreads_and", !x) == 0; }

inline void __syncwarp(unsigned mask = ~0u) { emulated::Meeting<int>("__syncwarp", mask, 0); }
inline unsigned __ballot_sync(unsigned mask, int x) {
    return emulated::ballot("__ballot_sync", mask, x);
}
inline int __any_sync(unsigned mask, int x) {
    return emulated::ballot("__any_sync", mask, x) != 0;
}
inline int __all_sync(unsigned mask, int x) {
    return emulated::ballot("__all_sync", mask, !x) == 0;
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value) {
    return emulated::Meeting<T>("__match_any_sync", mask, value)
        .fold(0u, [=](unsigned total, T x, unsigned lane) {
            return total | unsigned(x == value) << lane;
        });
}

template <class T>
inline T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize) {
    return emulated::shuffled("__shfl_sync", mask, value, width, [=](int, int first, int) {
        return first + (lane & (width - 1));
    });
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = warpSize) {
    return emulated::shuffled("__shfl_up_sync", mask, value, width, [=](int own, int first, int) {
        return own - int(by) >= first ? own - int(by) : own;
    });
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = warpSize) {
    return emulated::shuffled("__shfl_down_sync", mask, value, width, [=](int own, int, int end) {
        return own + int(by) < end ? own + int(by) : own;
    });
}
// Lanes of earlier parts give their values too, those of later parts do not.
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = warpSize) {
    return emulated::shuffled("__shfl_xor_sync", mask, value, width, [=](int own, int, int end) {
        return (own ^ with) < end ? own ^ with : own;
    });
}

#define EMULATED_REDUCE(NAME, T, FIRST, VALUE)                                                    \
    inline T NAME(unsigned mask, T value) {                                                       \
        return emulated::reduced(#NAME, mask, T(FIRST), value, [](T a, T b) { return VALUE; });   \
    }

EMULATED_REDUCE(__reduce_add_sync, int, 0, a + b)
EMULATED_REDUCE(__reduce_add_sync, unsigned, 0, a + b)
EMULATED_REDUCE(__reduce_min_sync, int, 0x7fffffff, a < b ? a : b)
EMULATED_REDUCE(__reduce_min_sync, unsigned, ~0u, a < b ? a : b)
EMULATED_REDUCE(__reduce_max_sync, int, -0x7fffffff - 1, a < b ? b : a)
EMULATED_REDUCE(__reduce_max_sync, unsigned, 0, a < b ? b : a)
EMULATED_REDUCE(__reduce_and_sync, unsigned, ~0u, a & b)
EMULATED_REDUCE(__reduce_or_sync, unsigned, 0, a | b)
EMULATED_REDUCE(__reduce_xor_sync, unsigned, 0, a ^ b)

#undef EMULATED_REDUCE

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __threadfence(); }
inline void __threadfence_system() { __threadfence(); }
