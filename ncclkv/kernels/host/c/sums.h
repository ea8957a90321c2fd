/* Sums of squares in float64, in the order of kernels/host/measure.py. */

/* Count of elements whose sum is added to the sums before it. */
#define MEASURED_BLOCK 1024
/* Count of partial sums of a block: element i is in partial sum i % LANES. */
#define LANES 16

static double sum_of_lanes(const double *lanes)
{
    double total = lanes[0];

    for (int k = 1; k < LANES; k++)
        total += lanes[k];
    return total;
}
