/* Follow the moving leader on one element, as MXNet's ftml_update.

   Row of scalars: learning rate, beta1, 1 - beta1, beta2, 1 - beta2, epsilon, the corrections of
   bias 1 - beta1^t and 1 - beta2^t, and those of gradient.h.  States: d, v and z.  A learning rate
   of 0 changes neither weight nor states. */

#include "gradient.h"

#define SCALARS 11

typedef struct {
    REAL learning_rate, beta1, share1, beta2, share2, epsilon, bias1, bias2;
    NAME(common_scalars) common;
    REAL rate;
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
    s.bias1 = (REAL)row[6];
    s.bias2 = (REAL)row[7];
    s.common = NAME(read_common)(row + 8);
    s.rate = s.bias1 / s.learning_rate;
    return s;
}

/* Return the new weight. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    REAL change = NAME(decayed_and_clipped)(&s->common, gradient, weight), old, kept;

    if (s->learning_rate == 0)
        return weight;
    old = state[0];
    state[1] = state[1] * s->beta2 + change * change * s->share2;
    state[0] = (ROOT(state[1] / s->bias2) + s->epsilon) * s->rate;
    kept = state[2] * s->beta1 + change * s->share1;
    state[2] = kept - (state[0] - old * s->beta1) * weight;
    return -state[2] / state[0];
}
