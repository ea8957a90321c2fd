// Add the sums of blocks, which norms.cu has made, to the sums of segments.
//
// One block of threads adds those of a segment, in order: one thread for each sum.

#include "blocks.cuh"

struct Folds {
    const double* partial;
    double* sums;
    const int* skip;       // null, or the address of a flag: add only if the flag is 0
    u64 size[MAX_PIECES];  // elements of the segments
    unsigned first[MAX_PIECES + 1];
    unsigned count;
    unsigned norms;
};
static_assert(sizeof(Folds) == ARGUMENT_BYTES, "not the layout that the launch fills");

extern "C" __global__ void fold(const __grid_constant__ Folds folds) {
    if ((folds.skip && *folds.skip) || threadIdx.x >= folds.norms) {
        return;
    }
    const unsigned i = blockIdx.x;
    const u64 blocks = (folds.size[i] + BLOCK - 1) / BLOCK;
    const u64 begin = u64(folds.first[i]) * (PER_BLOCK / BLOCK);
    double* sum = folds.sums + u64(i) * folds.norms + threadIdx.x;
    double total = *sum;
#pragma unroll 8
    for (u64 j = begin; j < begin + blocks; ++j) {
        total += folds.partial[j * folds.norms + threadIdx.x];
    }
    *sum = total;
}
