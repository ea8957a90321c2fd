// Multiply the columns of tiles by a part of P; a thread has some columns.

#include "tiles.cuh"

static_assert(sizeof(Tiles) == ARGUMENT_BYTES, "not the layout that the launch fills");

constexpr unsigned EACH = (TILE_COLUMNS + THREADS - 1) / THREADS;

extern "C" __global__ void project_back(const __grid_constant__ Tiles tiles) {
    if (tiles.skip && *tiles.skip) {
        return;
    }
    const unsigned i = piece_of(tiles.first, tiles.count, blockIdx.x);
    const u64 all_rows = tiles.rows[i], all_columns = tiles.columns[i];
    const Tile tile(all_rows, all_columns, blockIdx.x - tiles.first[i]);
    const unsigned rank = tiles.rank[i];
    const float* matrix = tiles.matrix[i] + tile.row * all_columns + tile.column;
    float* out = tiles.scratch + tiles.partial[i] + tile.down * rank * all_columns + tile.column;
    for (unsigned k = 0; k < rank; k += TOGETHER) {
        const unsigned width = Tile::least(rank - k, TOGETHER);
        const float* p = tiles.narrow[i] + k * all_rows + tile.row;
        float sums[EACH][TOGETHER] = {};
#pragma unroll 4
        for (unsigned r = 0; r < tile.rows; ++r) {
            float own[TOGETHER];
#pragma unroll
            for (unsigned c = 0; c < TOGETHER; ++c) {
                own[c] = c < width ? p[c * all_rows + r] : 0.0f;
            }
#pragma unroll
            for (unsigned n = 0; n < EACH; ++n) {
                const unsigned j = threadIdx.x + n * THREADS;
                if (j < tile.columns) {
                    const float x = matrix[r * all_columns + j];
#pragma unroll
                    for (unsigned c = 0; c < TOGETHER; ++c) {
                        sums[n][c] += x * own[c];
                    }
                }
            }
        }
#pragma unroll
        for (unsigned n = 0; n < EACH; ++n) {
            const unsigned j = threadIdx.x + n * THREADS;
#pragma unroll
            for (unsigned c = 0; c < TOGETHER; ++c) {
                if (j < tile.columns && c < width) {
                    out[(k + c) * all_columns + j] = sums[n][c];
                }
            }
        }
    }
}
