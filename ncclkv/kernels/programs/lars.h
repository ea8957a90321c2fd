/* LARS on one element, as MXNet's multi_lars and sgd_mom_update.

   Row of scalars: learning rate, momentum, eta (negative: the rate is not adapted), epsilon, and
   those of gradient.h.  State: the momentum, or none.  Norms: of weights and gradients. */

#include "gradient.h"

#define SCALARS 7
#define NORMS 2
#define MEASURED_STATES 0

/* Sums of squares up to 2**-150 are 0 in float32, in which MXNet adds them.  The rate over such a
   norm may be infinite in float32. */
#define LEAST 7.006492321624085e-46

typedef struct {
    REAL learning_rate, momentum;
    NAME(common_scalars) common;
} NAME(scalars);

FUNCTION NAME(scalars) NAME(read)(const double *row)
{
    NAME(scalars) s;

    s.learning_rate = (REAL)row[0];
    s.momentum = (REAL)row[1];
    s.common = NAME(read_common)(row + 4);
    return s;
}

/* Write the numbers whose squares are summed. */
FUNCTION void NAME(measure)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state,
                            REAL *measured)
{
    (void)s;
    (void)state;
    measured[0] = weight;
    measured[1] = gradient;
}

/* The factor of the learning rate, from sums of squares. */
FUNCTION double NAME(trust)(const double *row, const double *sums)
{
    const double weight = sqrt(sums[0]), gradient = sqrt(sums[1]) * row[5];

    if (row[2] < 0 || !(weight > 0) || !(gradient > 0) || sums[1] <= LEAST)
        return 1;
    return row[2] * weight / (gradient + row[4] * weight + row[3]);
}

/* Return the new weight. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    REAL change = NAME(clipped_and_decayed)(&s->common, gradient, weight) * s->learning_rate;

    if (STATES == 0)
        return weight - change;
    state[0] = state[0] * s->momentum - change;
    return weight + state[0];
}
