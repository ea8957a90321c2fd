// Multiply the rows of tiles by a part of Q, once the residual is added to the matrix.
//
// A warp has some rows at once, so that each element of Q is loaded once for all of them.

#include "tiles.cuh"

static_assert(sizeof(Tiles) == ARGUMENT_BYTES, "not the layout that the launch fills");

constexpr unsigned LANES = 32;
constexpr unsigned WARPS = THREADS / LANES;
constexpr unsigned ROWS = 4;

// Add the numbers of a warp in a fixed order.
__device__ inline float warp_sum(float x) {
    for (unsigned step = LANES / 2; step > 0; step /= 2) {
        x += __shfl_xor_sync(~0u, x, step);
    }
    return x;
}

extern "C" __global__ void project(const __grid_constant__ Tiles tiles) {
    if (tiles.skip && *tiles.skip) {
        return;
    }
    const unsigned i = piece_of(tiles.first, tiles.count, blockIdx.x);
    const u64 all_rows = tiles.rows[i], all_columns = tiles.columns[i];
    const Tile tile(all_rows, all_columns, blockIdx.x - tiles.first[i]);
    const unsigned rank = tiles.rank[i];
    const unsigned warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    float* out = tiles.scratch + tiles.partial[i] + tile.across * rank * all_rows + tile.row;
    for (unsigned low = warp * ROWS; low < tile.rows; low += WARPS * ROWS) {
        const unsigned height = Tile::least(tile.rows - low, ROWS);
        const u64 begin = (tile.row + low) * all_columns + tile.column;
        for (unsigned k = 0; k < rank; k += TOGETHER) {
            const unsigned width = Tile::least(rank - k, TOGETHER);
            // The matrix is added to once.
            const float* residual = k ? nullptr : tiles.residual[i];
            const float* q = tiles.narrow[i] + k * all_columns + tile.column;
            float sums[ROWS][TOGETHER] = {};
            for (unsigned j = lane; j < tile.columns; j += LANES) {
                float own[TOGETHER];
#pragma unroll
                for (unsigned c = 0; c < TOGETHER; ++c) {
                    own[c] = c < width ? q[c * all_columns + j] : 0.0f;
                }
#pragma unroll
                for (unsigned r = 0; r < ROWS; ++r) {
                    if (r < height) {
                        const u64 at = begin + r * all_columns + j;
                        float x = tiles.matrix[i][at];
                        if (residual) {
                            x += residual[at];
                            tiles.matrix[i][at] = x;
                        }
#pragma unroll
                        for (unsigned c = 0; c < TOGETHER; ++c) {
                            sums[r][c] += x * own[c];
                        }
                    }
                }
            }
#pragma unroll
            for (unsigned r = 0; r < ROWS; ++r) {
#pragma unroll
                for (unsigned c = 0; c < TOGETHER; ++c) {
                    if (r < height && c < width) {
                        const float sum = warp_sum(sums[r][c]);
                        if (lane == 0) {
                            out[(k + c) * all_rows + low + r] = sum;
                        }
                    }
                }
            }
        }
    }
}
