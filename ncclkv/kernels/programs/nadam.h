/* Adam with Nesterov's momentum on one element, as MXNet's optimizer Nadam.

   Row of scalars: learning rate, beta1, 1 - beta1, beta2, 1 - beta2, epsilon, the factors of the
   gradient and of its mean in a step, the correction of the variance, and those of gradient.h.
   States: mean and variance of the gradient. */

#include "gradient.h"

#define SCALARS 12

typedef struct {
    REAL learning_rate, beta1, share1, beta2, share2, epsilon, now, ahead, correction;
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
    s.now = (REAL)row[6];
    s.ahead = (REAL)row[7];
    s.correction = (REAL)row[8];
    s.common = NAME(read_common)(row + 9);
    return s;
}

/* Return the new weight. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    REAL change = NAME(decayed_and_clipped)(&s->common, gradient, weight), mean;

    state[0] = state[0] * s->beta1 + change * s->share1;
    state[1] = state[1] * s->beta2 + change * s->share2 * change;
    mean = change * s->now + state[0] * s->ahead;
    return weight - mean * s->learning_rate / (ROOT(state[1] * s->correction) + s->epsilon);
}
