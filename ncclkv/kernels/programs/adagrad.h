/* AdaGrad on one element, as MXNet's optimizer AdaGrad with dense gradients.

   Row of scalars: learning rate, epsilon, and those of gradient.h.  State: sum of the squares of
   the gradients. */

#include "gradient.h"

#define SCALARS 5

typedef struct {
    REAL learning_rate, epsilon;
    NAME(common_scalars) common;
} NAME(scalars);

FUNCTION NAME(scalars) NAME(read)(const double *row)
{
    NAME(scalars) s;

    s.learning_rate = (REAL)row[0];
    s.epsilon = (REAL)row[1];
    s.common = NAME(read_common)(row + 2);
    return s;
}

/* Return the new weight. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    REAL change = NAME(clipped)(&s->common, gradient);

    state[0] = state[0] + change * change;
    change = change / ROOT(state[0] + s->epsilon);
    return weight - NAME(decayed)(&s->common, change, weight) * s->learning_rate;
}
