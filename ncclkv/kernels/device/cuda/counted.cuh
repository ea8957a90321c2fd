// Sums of the levels of several senders' codes.
//
// A thread has the codes of a byte.  A launch takes at most MAX_PARTS payloads.  More payloads take
// several launches: all but the first begin with the counts that the launch before has written.

#pragma once

#include "codes.cuh"

struct Payloads {
    const unsigned char* part[MAX_PARTS];
    unsigned count;
    unsigned continues;  // begin with the counts that are there
    unsigned ends;       // write the result, not counts
};

__device__ inline void add_levels(const Payloads& payloads, u64 j, unsigned* counts) {
#pragma unroll 4
    for (unsigned which = 0; which < payloads.count; ++which) {
        const unsigned byte = payloads.part[which][j];
#pragma unroll
        for (int k = 0; k < PER_BYTE; ++k) {
            counts[k] += level(byte, k);
        }
    }
}
