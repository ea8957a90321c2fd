// Make rows orthonormal by Gram and Schmidt's method, as in kernels/host/low_rank.py.
//
// Each launch takes one step of all matrices.  A row is a column of a narrow matrix.
// Step 0: the squares of all rows, by which step 1 finds those that a spare row replaces.
// Step 1: copy the rows, and multiply them by the first.
// Step i + 2: divide row i by its norm, take its part from later rows, and multiply these by the
// first of them.
// A block has the same elements in every step.  Each product is one sum for each block, and the
// next step adds the sums of all blocks.

#include "blocks.cuh"

struct Directions {
    const float* source[MAX_PIECES];
    const float* spare[MAX_PIECES];  // null, or rows for those that are 0 or not finite
    float* out[MAX_PIECES];          // may be the source
    u64 length[MAX_PIECES];          // of a row
    u64 work[MAX_PIECES];            // the first number of the rows in the scratch memory
    u64 partial[MAX_PIECES];         // and that of the sums of blocks
    double* scratch;
    const int* skip;  // null, or the address of a flag: change nothing unless the flag is 0
    unsigned step;
    unsigned rank[MAX_PIECES];  // count of rows
    unsigned first[MAX_PIECES + 1];
    unsigned count;
};
static_assert(sizeof(Directions) == ARGUMENT_BYTES, "not the layout that the launch fills");

// The sum of the numbers of all threads, in a fixed order; every thread gets it.
__device__ inline double block_sum(double x) {
    __shared__ double sums[THREADS];
    __syncthreads();  // an earlier sum was read
    sums[threadIdx.x] = x;
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
        }
    }
    __syncthreads();
    return sums[0];
}

// The rows of a matrix, and the elements of this block.
struct Rows {
    double* work;
    double* partial;
    unsigned rank, blocks, block;
    u64 length, begin, end;

    __device__ Rows(const Directions& given, unsigned i)
        : work(given.scratch + given.work[i]),
          partial(given.scratch + given.partial[i]),
          rank(given.rank[i]),
          blocks(given.first[i + 1] - given.first[i]),
          block(blockIdx.x - given.first[i]),
          length(given.length[i]),
          begin(u64(block) * PER_BLOCK) {
        end = begin + PER_BLOCK < length ? begin + PER_BLOCK : length;
    }

    // The sums of a block: products of the last step and of this one, in turn, and squares.
    __device__ double* sum(unsigned block, unsigned kind, unsigned row) const {
        return partial + (u64(block) * 3 + kind) * rank + row;
    }

    __device__ double total(unsigned kind, unsigned row) const {
        double sums = 0;
        for (unsigned other = threadIdx.x; other < blocks; other += THREADS) {
            sums += *sum(other, kind, row);
        }
        return block_sum(sums);
    }

    __device__ void store(unsigned kind, unsigned row, double own) const {
        const double total = block_sum(own);
        if (threadIdx.x == 0) {
            *sum(block, kind, row) = total;
        }
    }
};

constexpr unsigned SQUARES = 2;

__device__ inline void measure(const Rows& rows, const float* source) {
    for (unsigned j = 0; j < rows.rank; ++j) {
        double squares = 0;
        for (u64 e = rows.begin + threadIdx.x; e < rows.end; e += THREADS) {
            const double x = source[j * rows.length + e];
            squares += x * x;
        }
        rows.store(0, j, squares);
    }
}

__device__ inline void begin(const Rows& rows, const float* source, const float* spare) {
    for (unsigned j = 0; j < rows.rank; ++j) {
        const float* row = source;
        if (spare) {
            // Squares of float32 neither overflow nor vanish in float64.
            const double squares = rows.total(0, j);
            row = squares > 0 && isfinite(squares) ? source : spare;
        }
        double squares = 0, products = 0;
        for (u64 e = rows.begin + threadIdx.x; e < rows.end; e += THREADS) {
            const double x = row[j * rows.length + e];
            rows.work[j * rows.length + e] = x;
            squares += x * x;
            products += rows.work[e] * x;
        }
        rows.store(SQUARES, j, squares);
        rows.store(1, j, products);
    }
}

__device__ inline void finish(const Rows& rows, unsigned i, unsigned step, float* out) {
    const unsigned last = (step - 1) % 2, now = step % 2;
    const double norm = sqrt(rows.total(last, i));
    const double before = sqrt(rows.total(SQUARES, i));
    // A comparison with NaN is false, so that NaN is seen in the result.
    const bool depends = norm == 0 || norm < LEAST_SHARE * before;
    double* row = rows.work + i * rows.length;
    double* next = row + rows.length;
    for (u64 e = rows.begin + threadIdx.x; e < rows.end; e += THREADS) {
        const double x = depends ? 0 : row[e] / norm;
        row[e] = x;
        out[i * rows.length + e] = static_cast<float>(x);
    }
    for (unsigned j = i + 1; j < rows.rank; ++j) {
        double* later = rows.work + j * rows.length;
        const double product = rows.total(last, j);
        // NaN and infinity of a later row spread, as on the host.
        const double factor = depends ? 0 * product : product / norm;
        double products = 0;
        for (u64 e = rows.begin + threadIdx.x; e < rows.end; e += THREADS) {
            const double x = later[e] - factor * row[e];
            later[e] = x;
            products += x * next[e];
        }
        rows.store(now, j, products);
    }
}

extern "C" __global__ void orthonormalise(const __grid_constant__ Directions given) {
    if (given.skip && *given.skip) {
        return;
    }
    const unsigned i = piece_of(given.first, given.count, blockIdx.x);
    const Rows rows(given, i);
    if (given.step == 0) {
        measure(rows, given.source[i]);
    } else if (given.step == 1) {
        begin(rows, given.source[i], given.spare[i]);
    } else if (given.step < rows.rank + 2) {
        finish(rows, given.step - 2, given.step, given.out[i]);
    }
}
