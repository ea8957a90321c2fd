/* AdaMax on one element, as MXNet's optimizer Adamax.

   Row of scalars: learning rate with the correction of bias, beta1, 1 - beta1, beta2, and those of
   gradient.h.  States: mean of the gradient, and its decaying maximum.  A maximum of 0 makes no
   step. */

#include "gradient.h"

#define SCALARS 7

typedef struct {
    REAL learning_rate, beta1, share, beta2;
    NAME(common_scalars) common;
} NAME(scalars);

FUNCTION NAME(scalars) NAME(read)(const double *row)
{
    NAME(scalars) s;

    s.learning_rate = (REAL)row[0];
    s.beta1 = (REAL)row[1];
    s.share = (REAL)row[2];
    s.beta2 = (REAL)row[3];
    s.common = NAME(read_common)(row + 4);
    return s;
}

/* Return the new weight. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    REAL change = NAME(decayed_and_clipped)(&s->common, gradient, weight);
    REAL size = change > 0 ? change : 0 - change, old = state[1] * s->beta2;

    state[0] = state[0] * s->beta1 + change * s->share;
    /* A NaN of either wins. */
    state[1] = old >= size || old != old ? old : size;
    change = state[0] * s->learning_rate / state[1];
    return weight - (state[1] == 0 ? 0 : change);
}
