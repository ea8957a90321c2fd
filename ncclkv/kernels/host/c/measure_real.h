/* Sums of squares of one type by one program.  Included by update_real.h, if the program's header
   defines NORMS: the count of sums.  MEASURED_STATES is the count of states that it updates.

   The order of the additions is that of kernels/host/measure.py. */

/* Add the squares of elements [from, from + count), LANES at most, to the partial sums. */
FUNCTION void NAME(measure_lanes)(const NAME(scalars) *scalars, const ANY *weights,
                                  const ANY *gradients, ANY *const *at, size_t from, size_t count,
                                  double (*lanes)[LANES])
{
    /* The arrays do not overlap. */
#pragma GCC ivdep
    for (size_t i = 0; i < count; i++) {
        REAL state[STATES + 1], found[NORMS];
        for (int k = 0; k < MEASURED_STATES; k++)
            state[k] = at[k][from + i];
        NAME(measure)(scalars, weights[from + i], gradients[from + i], state, found);
        for (int k = 0; k < NORMS; k++)
            lanes[k][i] += (double)found[k] * (double)found[k];
        for (int k = 0; k < MEASURED_STATES; k++)
            at[k][from + i] = state[k];
    }
}

/* Add the sums of squares of `count` elements to `sums`. */
CLONES static void NAME(measure_all)(const void *weights, const void *gradients,
                                     void *const *states, const double *row, size_t count,
                                     double *sums)
{
    const NAME(scalars) scalars = NAME(read)(row);
    ANY *at[STATES + 1];

    for (int k = 0; k < STATES; k++)
        at[k] = states[k];
    for (size_t from = 0; from < count; from += MEASURED_BLOCK) {
        const size_t end = count - from < MEASURED_BLOCK ? count : from + MEASURED_BLOCK;
        double lanes[NORMS][LANES] = {{0}};
        size_t i = from;
        for (; i + LANES <= end; i += LANES)
            NAME(measure_lanes)(&scalars, weights, gradients, at, i, LANES, lanes);
        NAME(measure_lanes)(&scalars, weights, gradients, at, i, end - i, lanes);
        for (int k = 0; k < NORMS; k++)
            sums[k] += sum_of_lanes(lanes[k]);
    }
}
