// Set matrices to products of narrow ones, and residuals to the rest, as in kernels/host/low_rank.py.

#include "tiles.cuh"

struct Products {
    float* matrix[MAX_PIECES];
    float* residual[MAX_PIECES];  // null, or what gets this sender's matrix less its share
    const float* left[MAX_PIECES];
    const float* right[MAX_PIECES];
    u64 rows[MAX_PIECES];
    u64 columns[MAX_PIECES];
    const int* skip;  // null, or the address of a flag: change nothing unless the flag is 0
    float senders;
    unsigned average;  // whether the product is divided by the count of senders
    unsigned rank[MAX_PIECES];
    unsigned first[MAX_PIECES + 1];
    unsigned count;
};
static_assert(sizeof(Products) == ARGUMENT_BYTES, "not the layout that the launch fills");

extern "C" __global__ void multiply(const __grid_constant__ Products products) {
    if (products.skip && *products.skip) {
        return;
    }
    const unsigned i = piece_of(products.first, products.count, blockIdx.x);
    const u64 all_rows = products.rows[i], all_columns = products.columns[i];
    const Tile tile(all_rows, all_columns, blockIdx.x - products.first[i]);
    const unsigned rank = products.rank[i];
    const float* left = products.left[i] + tile.row;
    const float* right = products.right[i] + tile.column;
    const u64 begin = tile.row * all_columns + tile.column;
    float* matrix = products.matrix[i] + begin;
    float* residual = products.residual[i] ? products.residual[i] + begin : nullptr;
    for (unsigned j = threadIdx.x; j < tile.columns; j += THREADS) {
#pragma unroll 4
        for (unsigned r = 0; r < tile.rows; ++r) {
            float product = left[r] * right[j];
            for (unsigned k = 1; k < rank; ++k) {
                product += left[k * all_rows + r] * right[k * all_columns + j];
            }
            const u64 at = r * all_columns + j;
            const float share = product / products.senders;
            if (residual) {
                residual[at] = matrix[at] - share;
            }
            matrix[at] = products.average ? share : product;
        }
    }
}
