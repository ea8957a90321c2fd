/* Products of narrow matrices, as in ncclkv/kernels/host/low_rank.py.

   Each loop has a fixed order of operations: ranks must make equal bits, which a BLAS does not
   promise from one processor to another.  A row here is a column of the narrow matrix. */

enum { PRODUCT_TILE = 1024 };

/* A row that keeps a smaller share of its norm depends on the rows before it. */
static const double LEAST_SHARE = 1e-8;

/* The sum of products: element i in lane i % LANES, and the lanes in their order. */
CLONES static double dot_rows(const double *a, const double *b, size_t count)
{
    double sums[LANES] = {0};
    size_t i = 0;

    for (; i + LANES <= count; i += LANES)
        for (size_t j = 0; j < LANES; j++)
            sums[j] = sums[j] + a[i + j] * b[i + j];
    for (size_t j = 0; i + j < count; j++)
        sums[j] = sums[j] + a[i + j] * b[i + j];
    return sum_of_lanes(sums);
}

CLONES static void divide_row(double *row, double divisor, size_t count)
{
    for (size_t i = 0; i < count; i++)
        row[i] = row[i] / divisor;
}

/* row -= factor * other */
CLONES static void subtract_row(double *restrict row, const double *restrict other, double factor,
                                size_t count)
{
    for (size_t i = 0; i < count; i++)
        row[i] = row[i] - factor * other[i];
}

/* Divide a row by its norm; a row that is zero but for rounding becomes zero.  A comparison with
   NaN is false, so that NaN and infinity are seen in the result. */
static void normalise_row(double *row, double before, size_t count)
{
    const double norm = sqrt(dot_rows(row, row, count));

    if (norm == 0 || norm < LEAST_SHARE * before)
        memset(row, 0, count * sizeof(double));
    else
        divide_row(row, norm, count);
}

/* Make rows orthonormal by Gram and Schmidt's method.  Returns -1 without memory. */
static int orthonormalise_all(float_any *rows, size_t row_count, size_t count)
{
    double *work = PyMem_RawMalloc(row_count * (count + 1) * sizeof(double));
    double *norms;

    if (work == NULL)
        return -1;
    norms = work + row_count * count;
    for (size_t i = 0; i < row_count * count; i++)
        work[i] = rows[i];
    for (size_t i = 0; i < row_count; i++)
        norms[i] = sqrt(dot_rows(work + i * count, work + i * count, count));
    for (size_t i = 0; i < row_count; i++) {
        double *row = work + i * count;
        normalise_row(row, norms[i], count);
        for (size_t j = i + 1; j < row_count; j++)
            subtract_row(work + j * count, row, dot_rows(row, work + j * count, count), count);
    }
    for (size_t i = 0; i < row_count * count; i++)
        rows[i] = (float)work[i];
    PyMem_RawFree(work);
    return 0;
}

CLONES static void begin_product(float *restrict tile, const float_any *restrict right, float left,
                                 size_t count)
{
    for (size_t i = 0; i < count; i++)
        tile[i] = left * right[i];
}

CLONES static void add_product(float *restrict tile, const float_any *restrict right, float left,
                               size_t count)
{
    for (size_t i = 0; i < count; i++)
        tile[i] = tile[i] + left * right[i];
}

/* residual = matrix - tile / senders */
CLONES static void leave_rest(float_any *restrict residual, const float_any *restrict matrix,
                              const float *restrict tile, float senders, size_t count)
{
    for (size_t i = 0; i < count; i++)
        residual[i] = matrix[i] - tile[i] / senders;
}

/* Set a matrix to the product of its narrow ones, and the residual, unless it is NULL, to what the
   product lacks of this sender's matrix. */
static void multiply_all(float_any *matrix, float_any *residual, const float_any *left,
                         const float_any *right, size_t rank, size_t rows, size_t columns,
                         float senders, int average)
{
    float tile[PRODUCT_TILE];

    for (size_t row = 0; row < rows; row++)
        for (size_t from = 0; from < columns; from += PRODUCT_TILE) {
            const size_t rest = columns - from, length = rest < PRODUCT_TILE ? rest : PRODUCT_TILE;
            const size_t at = row * columns + from;
            begin_product(tile, right + from, left[row], length);
            for (size_t k = 1; k < rank; k++)
                add_product(tile, right + k * columns + from, left[k * rows + row], length);
            if (residual != NULL)
                leave_rest(residual + at, matrix + at, tile, senders, length);
            if (average)
                divide_float(tile, senders, length);
            memcpy(matrix + at, tile, length * sizeof(float));
        }
}
