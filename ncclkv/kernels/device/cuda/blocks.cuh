// Assignment of the blocks of a launch to its pieces, which have any size.
//
// Block b works on piece i when first[i] <= b < first[i + 1].  A launch has one argument, by value:
// no memory of it could be freed too early.

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
