/* RMSProp on one element, as MXNet's rmsprop_update (one state) and rmspropalex_update (three).

   Row of scalars: learning rate, gamma1, 1 - gamma1, gamma2, epsilon, the bound of the weight
   (negative: no bound), and those of gradient.h.  States: mean square of the gradient; if centered
   also its mean, and the last change of the weight. */

#include "gradient.h"

#define SCALARS 9

typedef struct {
    REAL learning_rate, gamma1, share, gamma2, epsilon, bound;
    NAME(common_scalars) common;
    int bounds;
} NAME(scalars);

FUNCTION NAME(scalars) NAME(read)(const double *row)
{
    NAME(scalars) s;

    s.learning_rate = (REAL)row[0];
    s.gamma1 = (REAL)row[1];
    s.share = (REAL)row[2];
    s.gamma2 = (REAL)row[3];
    s.epsilon = (REAL)row[4];
    s.bound = (REAL)row[5];
    s.common = NAME(read_common)(row + 6);
    s.bounds = row[5] >= 0;
    return s;
}

/* Return the new weight. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    REAL change = NAME(decayed_and_clipped)(&s->common, gradient, weight), part, variance;

    if (STATES == 1) {
        state[0] = state[0] * s->gamma1 + change * change * s->share;
        weight = weight - change / ROOT(state[0] + s->epsilon) * s->learning_rate;
    } else {
        part = change * s->share;
        state[0] = state[0] * s->gamma1 + part * change;
        state[1] = state[1] * s->gamma1 + part;
        variance = state[0] - state[1] * state[1];
        /* Rounding may make the variance of equal gradients negative. */
        variance = (variance < 0 ? 0 : variance) + s->epsilon;
        state[2] = state[2] * s->gamma2 - change * s->learning_rate / ROOT(variance);
        weight = weight + state[2];
    }
    return s->bounds ? NAME(clamp)(weight, s->bound) : weight;
}
