/* Follow the regularized leader on one element, as MXNet's ftrl_update.

   Row of scalars: learning rate, lamda1, beta, and those of gradient.h.  States: z, and n, the sum
   of the squares of the gradients.  A learning rate of 0 changes neither weight nor states. */

#include "gradient.h"

#define SCALARS 6

typedef struct {
    REAL learning_rate, lamda1, beta;
    NAME(common_scalars) common;
} NAME(scalars);

FUNCTION NAME(scalars) NAME(read)(const double *row)
{
    NAME(scalars) s;

    s.learning_rate = (REAL)row[0];
    s.lamda1 = (REAL)row[1];
    s.beta = (REAL)row[2];
    s.common = NAME(read_common)(row + 3);
    return s;
}

/* Return the new weight. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    REAL change = NAME(clipped)(&s->common, gradient), before, after, divisor;

    if (s->learning_rate == 0)
        return weight;
    before = ROOT(state[1]);
    state[1] = state[1] + change * change;
    after = ROOT(state[1]);
    state[0] = state[0] + (change - (after - before) * weight / s->learning_rate);
    divisor = (after + s->beta) / s->learning_rate + s->common.weight_decay;
    weight = ((state[0] > 0 ? s->lamda1 : -s->lamda1) - state[0]) / divisor;
    /* A NaN passes: both comparisons are false. */
    return state[0] <= s->lamda1 && state[0] >= -s->lamda1 ? 0 : weight;
}
