/* Lion on one element, as in "Symbolic Discovery of Optimization Algorithms" (Chen and others, 2023).

   Row of scalars: learning rate, beta1, 1 - beta1, beta2, 1 - beta2, and those of gradient.h.
   State: the momentum. */

#include "gradient.h"

#define SCALARS 8

typedef struct {
    REAL learning_rate, beta1, share1, beta2, share2;
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
    s.common = NAME(read_common)(row + 5);
    return s;
}

/* Return the new weight. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    REAL change = NAME(clipped)(&s->common, gradient);
    REAL direction = NAME(sign)(state[0] * s->beta1 + change * s->share1);

    state[0] = state[0] * s->beta2 + change * s->share2;
    return weight - NAME(decayed)(&s->common, direction, weight) * s->learning_rate;
}
