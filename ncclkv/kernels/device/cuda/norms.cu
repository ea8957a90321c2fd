// Sums of squares by a program's header, in the order of kernels/host/measure.py.
//
// One block of threads sums GROUPS blocks of elements, with LANES threads each.  fold.cu adds the
// sums of the blocks.

#include "blocks.cuh"
#include "elements.cuh"
#include "arithmetic.cuh"

struct Measures {
    const ELEMENT* weights;
    const ELEMENT* gradients;
    WORKING* states[MAX_STATES];
    const WORKING* master;  // null, or weights that `weights` are the rounding of
    // Segment i is elements [start[i], start[i + 1]), with row i of the scalars.
    u64 start[MAX_PIECES + 1];
    const double* scalars;
    const int* skip;      // null, or the address of a flag: measure only if the flag is 0
    const double* total;  // null, or what global_scale reads
    double* partial;      // NORMS sums for each block of elements
    unsigned first[MAX_PIECES + 1];
    unsigned count;
};
static_assert(sizeof(Measures) == ARGUMENT_BYTES, "not the layout that the launch fills");

constexpr int GROUPS = PER_BLOCK / BLOCK;
constexpr bool NARROW = sizeof(ELEMENT) < sizeof(WORKING);
constexpr int SLOTS = STATES > 0 ? STATES : 1;

extern "C" __global__ void norms(const __grid_constant__ Measures measures) {
    if (measures.skip && *measures.skip) {
        return;
    }
    const unsigned i = piece_of(measures.first, measures.count, blockIdx.x);
    const u64 low = measures.start[i] + u64(blockIdx.x - measures.first[i]) * PER_BLOCK;
    const u64 left = measures.start[i + 1] - low;
    const u64 size = left < PER_BLOCK ? left : PER_BLOCK;
    const scalars s = read_adapted(measures.scalars + u64(i) * SCALARS, nullptr, measures.total);
    const unsigned group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const u64 begin = u64(group) * BLOCK;
    const u64 end = begin + BLOCK < size ? begin + BLOCK : size;
    double sums[NORMS] = {};
    for (u64 j = low + begin + lane; j < low + end; j += LANES) {
        WORKING state[SLOTS], found[NORMS];
        for (int k = 0; k < MEASURED_STATES; ++k) {
            state[k] = measures.states[k][j];
        }
        const bool wide = NARROW && measures.master;
        const WORKING weight = wide ? measures.master[j] : widen(measures.weights[j]);
        measure(&s, weight, widen(measures.gradients[j]), state, found);
        for (int k = 0; k < MEASURED_STATES; ++k) {
            measures.states[k][j] = state[k];
        }
        for (int k = 0; k < NORMS; ++k) {
            sums[k] += double(found[k]) * double(found[k]);
        }
    }
    __shared__ double lanes[NORMS][GROUPS * LANES];
    for (int k = 0; k < NORMS; ++k) {
        lanes[k][threadIdx.x] = sums[k];
    }
    __syncthreads();
    if (threadIdx.x < GROUPS * NORMS) {
        const unsigned block = threadIdx.x / NORMS, k = threadIdx.x % NORMS;
        const double* of_block = lanes[k] + block * LANES;
        double total = of_block[0];
        for (int j = 1; j < LANES; ++j) {
            total += of_block[j];
        }
        measures.partial[u64(blockIdx.x) * GROUPS * NORMS + threadIdx.x] = total;
    }
}
