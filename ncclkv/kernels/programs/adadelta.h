/* AdaDelta on one element, as MXNet's optimizer AdaDelta.

   Row of scalars: rho, 1 - rho, epsilon, and those of gradient.h.  States: mean squares of the
   gradient and of the changes. */

#include "gradient.h"

#define SCALARS 6

typedef struct {
    REAL rho, share, epsilon;
    NAME(common_scalars) common;
} NAME(scalars);

FUNCTION NAME(scalars) NAME(read)(const double *row)
{
    NAME(scalars) s;

    s.rho = (REAL)row[0];
    s.share = (REAL)row[1];
    s.epsilon = (REAL)row[2];
    s.common = NAME(read_common)(row + 3);
    return s;
}

/* Return the new weight. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    REAL change = NAME(clipped)(&s->common, gradient);

    state[0] = state[0] * s->rho + change * s->share * change;
    change = ROOT(state[1] + s->epsilon) / ROOT(state[0] + s->epsilon) * change;
    state[1] = state[1] * s->rho + change * s->share * change;
    return weight - NAME(decayed)(&s->common, change, weight);
}
