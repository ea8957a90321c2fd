/* Stochastic gradient descent on one element, as MXNet's sgd_update and sgd_mom_update.

   Row of scalars: learning rate, momentum, and those of gradient.h.  State: the momentum, or
   none. */

#include "gradient.h"

#define SCALARS 5

typedef struct {
    REAL learning_rate, momentum;
    NAME(common_scalars) common;
} NAME(scalars);

FUNCTION NAME(scalars) NAME(read)(const double *row)
{
    NAME(scalars) s;

    s.learning_rate = (REAL)row[0];
    s.momentum = (REAL)row[1];
    s.common = NAME(read_common)(row + 2);
    return s;
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
