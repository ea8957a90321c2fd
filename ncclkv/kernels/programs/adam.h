/* Adam on one element, as MXNet's adam_update, and AdamW.

   Row of scalars: learning rate with the corrections of bias, beta1, 1 - beta1, beta2, 1 - beta2,
   epsilon, the factor of the weight (1 without decoupled decay), and those of gradient.h.  States:
   mean and variance of the gradient. */

#include "gradient.h"

#define SCALARS 10

typedef struct {
    REAL learning_rate, beta1, share1, beta2, share2, epsilon, keep;
    NAME(common_scalars) common;
} NAME(scalars);

FUNCTION NAME(scalars) NAME(read)(const double *row)
{
    NAME(scalars) s;

    s.learning_rate = (REAL)row[0];
    s.beta1 = (REAL)row[1];
    s.share1 = (REAL)row[2];
    s.beta2 = (REAL)row[3];
    s.share2 = (REAL)row[4];
    s.epsilon = (REAL)row[5];
    s.keep = (REAL)row[6];
    s.common = NAME(read_common)(row + 7);
    return s;
}

/* Return the new weight. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    REAL change = NAME(decayed_and_clipped)(&s->common, gradient, weight);

    state[0] = state[0] * s->beta1 + change * s->share1;
    state[1] = state[1] * s->beta2 + change * s->share2 * change;
    return weight * s->keep - state[0] * s->learning_rate / (ROOT(state[1]) + s->epsilon);
}
