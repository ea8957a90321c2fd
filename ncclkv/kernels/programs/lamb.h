/* LAMB on one element, as MXNet's lamb_update_phase1 and lamb_update_phase2.

   Row of scalars: learning rate, beta1, 1 - beta1, beta2, 1 - beta2, epsilon, the factors that
   correct the mean and the root of the variance, the least and the largest norm of the weights
   (negative: no bound), and those of gradient.h.  States: mean and variance of the gradient.
   Norms: of weights and directions. */

#include "gradient.h"

#define SCALARS 13
#define NORMS 2
#define MEASURED_STATES 2

typedef struct {
    REAL learning_rate, beta1, share1, beta2, share2, epsilon, corrected, root;
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
    s.corrected = (REAL)row[6];
    s.root = (REAL)row[7];
    s.common = NAME(read_common)(row + 10);
    return s;
}

/* The direction of the step.  Its first term is 0 for a mean of 0, also without an epsilon: the
   padding between keys must not become NaN. */
FUNCTION REAL NAME(direction)(const NAME(scalars) *s, REAL weight, const REAL *state)
{
    REAL ratio = state[0] * s->corrected / (ROOT(state[1]) * s->root + s->epsilon);

    return NAME(decayed)(&s->common, s->epsilon == 0 && state[0] == 0 ? 0 : ratio, weight);
}

/* Update the states; write the numbers whose squares are summed. */
FUNCTION void NAME(measure)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state,
                            REAL *measured)
{
    REAL change = NAME(clipped)(&s->common, gradient);

    state[0] = state[0] * s->beta1 + change * s->share1;
    state[1] = state[1] * s->beta2 + change * s->share2 * change;
    measured[0] = weight;
    measured[1] = NAME(direction)(s, weight, state);
}

/* The factor of the learning rate, from sums of squares. */
FUNCTION double NAME(trust)(const double *row, const double *sums)
{
    const double direction = sqrt(sums[1]);
    double weight = sqrt(sums[0]);

    if (row[8] >= 0 && weight < row[8])
        weight = row[8];
    if (row[9] >= 0 && weight > row[9])
        weight = row[9];
    return weight == 0 || direction == 0 ? 1 : weight / direction;
}

/* Return the new weight; the states are those of `measure`. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    (void)gradient;
    return weight - NAME(direction)(s, weight, state) * s->learning_rate;
}
