// A program's header, and rows of scalars as an update reads them.

#pragma once

#define REAL WORKING
#define NAME(x) x
#define FUNCTION __device__ inline
#define ROOT root

__device__ inline float root(float x) { return sqrtf(x); }
__device__ inline double root(double x) { return sqrt(x); }

#include ARITHMETIC

// Read a row.  Sums of squares, if they are not null, change the learning rate; a total, if it is
// not null, changes the factor of the gradients.
__device__ inline scalars read_adapted(const double* row, const double* sums,
                                       const double* total) {
    if (!sums && !total) {
        return read(row);
    }
    double changed[SCALARS];
    for (int k = 0; k < SCALARS; ++k) {
        changed[k] = row[k];
    }
    if (total) {
        changed[SCALARS - 2] *= global_scale(total, changed[SCALARS - 2]);
    }
#ifdef NORMS
    if (sums) {
        changed[0] *= trust(changed, sums);
    }
#endif
    return read(changed);
}
