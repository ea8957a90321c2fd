/* Steps by the sign on one element, as MXNet's signum_update and signsgd_update.

   Row of scalars: learning rate, momentum, 1 - momentum, weight decay in the momentum, the factor
   of the weight, and those of gradient.h.  State: the momentum of the negative gradient, or
   none. */

#include "gradient.h"

#define SCALARS 8

typedef struct {
    REAL learning_rate, momentum, share, decay, keep;
    NAME(common_scalars) common;
} NAME(scalars);

FUNCTION NAME(scalars) NAME(read)(const double *row)
{
    NAME(scalars) s;

    s.learning_rate = (REAL)row[0];
    s.momentum = (REAL)row[1];
    s.share = (REAL)row[2];
    s.decay = (REAL)row[3];
    s.keep = (REAL)row[4];
    s.common = NAME(read_common)(row + 5);
    return s;
}

/* Return the new weight. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    REAL kept;

    if (STATES == 0)
        return weight * s->keep - NAME(sign)(gradient) * s->learning_rate;
    kept = state[0] * s->momentum;
    if (s->common.decays)
        kept = kept - weight * s->decay;
    state[0] = kept - NAME(clipped)(&s->common, gradient) * s->share;
    return weight * s->keep + NAME(sign)(state[0]) * s->learning_rate;
}
