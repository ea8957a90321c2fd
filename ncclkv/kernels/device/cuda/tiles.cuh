// Tiles of matrices, which one block of threads multiplies by a part of a narrow matrix.
//
// A narrow matrix is given by its columns, each of them a row of an array.

#pragma once

#include "blocks.cuh"

// Columns of the narrow matrix whose sums a thread has in registers.
constexpr unsigned TOGETHER = 4;

struct Tiles {
    float* matrix[MAX_PIECES];
    const float* residual[MAX_PIECES];  // null, or what is added to the matrix
    const float* narrow[MAX_PIECES];
    u64 rows[MAX_PIECES];
    u64 columns[MAX_PIECES];
    u64 partial[MAX_PIECES];  // the first product in the scratch memory: as long for each tile
    float* scratch;
    const int* skip;  // null, or the address of a flag: change nothing unless the flag is 0
    unsigned rank[MAX_PIECES];  // count of columns of the narrow matrix
    unsigned first[MAX_PIECES + 1];
    unsigned count;
};

// The place of a block in the matrix.
struct Tile {
    u64 across, down;   // its number, from the left and from above
    u64 row, column;    // its first element
    unsigned rows, columns;

    __device__ Tile(u64 all_rows, u64 all_columns, unsigned block) {
        const u64 side_by_side = (all_columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
        down = block / side_by_side;
        across = block % side_by_side;
        row = down * TILE_ROWS;
        column = across * TILE_COLUMNS;
        rows = least(all_rows - row, TILE_ROWS);
        columns = least(all_columns - column, TILE_COLUMNS);
    }

    __device__ static unsigned least(u64 left, unsigned most) {
        return left < most ? static_cast<unsigned>(left) : most;
    }
};
