/* Nesterov's accelerated gradient on one element, as MXNet's nag_mom_update and sgd_update.

   Row of scalars: learning rate, momentum, 1 + momentum, and those of gradient.h.  State: the
   momentum, or none.  MXNet's kernel writes the weight before it computes the new momentum, in
   which the decay is therefore that of the new weight. */

#include "gradient.h"

#define SCALARS 6

typedef struct {
    REAL learning_rate, momentum, ahead;
    NAME(common_scalars) common;
} NAME(scalars);

FUNCTION NAME(scalars) NAME(read)(const double *row)
{
    NAME(scalars) s;

    s.learning_rate = (REAL)row[0];
    s.momentum = (REAL)row[1];
    s.ahead = (REAL)row[2];
    s.common = NAME(read_common)(row + 3);
    return s;
}

/* Return the new weight. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    REAL pure = NAME(clipped)(&s->common, gradient);
    REAL change = NAME(decayed)(&s->common, pure, weight) * s->learning_rate, kept;

    if (STATES == 0)
        return weight - change;
    kept = state[0] * s->momentum;
    weight = weight - kept + (kept - change) * s->ahead;
    state[0] = kept - NAME(decayed)(&s->common, pure, weight) * s->learning_rate;
    return weight;
}
