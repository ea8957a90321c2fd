// The largest sums of gradients and residuals, in the order of kernels/host/largest.py.
//
// Magnitudes are compared as integers: the bits without the sign have the same order.  Digits of 11,
// 10 and 10 bits of the least one that is sent are found one after another, by histograms.

#pragma once

#include "blocks.cuh"

constexpr unsigned DIGITS = 2048;
constexpr unsigned SIZE_OF_NAN = 0x7f800001;  // all NaNs are equal, and above infinity

// What is known of the least size of a key that is sent.
struct Least {
    unsigned size;   // its first digits
    unsigned known;  // the bits of these digits
    u64 wanted;      // at the end, the elements of this size that are sent
};

// Elements of a block above the least size, and of it; then, those of all blocks before it.
struct Counts {
    u64 above, equal;
};

struct Takes {
    float* residual[MAX_PIECES];
    u64 start[MAX_PIECES];    // the first gradient of a piece
    u64 size[MAX_PIECES];
    u64 payload[MAX_PIECES];  // its first byte in the payload
    u64 wanted[MAX_PIECES];
    const float* gradients;
    unsigned char* bytes;
    unsigned* histograms;  // DIGITS zeros for each piece
    Least* least;
    Counts* counts;  // one for each block
    const int* skip;  // null, or the address of a flag: take only if the flag is 0
    unsigned shift;   // of the digit
    unsigned first[MAX_PIECES + 1];
    unsigned count;
};
static_assert(sizeof(Takes) == ARGUMENT_BYTES, "not the layout that the launch fills");

__device__ inline unsigned size_of(float x) {
    const unsigned size = __float_as_uint(x) & 0x7fffffff;
    return size < SIZE_OF_NAN ? size : SIZE_OF_NAN;
}

// The elements of a block.
struct Part {
    unsigned piece;
    u64 begin, size;

    __device__ explicit Part(const Takes& takes)
        : piece(piece_of(takes.first, takes.count, blockIdx.x)),
          begin(u64(blockIdx.x - takes.first[piece]) * PER_BLOCK) {
        const u64 left = takes.size[piece] - begin;
        size = left < PER_BLOCK ? left : PER_BLOCK;
    }
};
