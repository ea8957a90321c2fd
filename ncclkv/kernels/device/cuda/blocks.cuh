// How the blocks of a launch share its pieces, which are of any size and at most MOST.
//
// Block b works on piece i when first[i] <= b < first[i + 1].  All that a launch has to know comes
// by value in its one argument, so nothing of it lives in memory that could be freed too early.

#pragma once

typedef unsigned long long u64;

__device__ inline unsigned piece_of(const unsigned* first, unsigned count, unsigned block) {
    unsigned low = 0, high = count;  // first[low] <= block < first[high]
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        if (first[middle] <= block) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}
