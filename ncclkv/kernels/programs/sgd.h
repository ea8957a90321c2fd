/* Stochastic gradient descent on one element, as MXNet's sgd_update and sgd_mom_update.

   Row of scalars: learning rate, momentum, weight decay, factor of the gradient, and the bound of
   the product (negative: no bound).  State: the momentum, or none. */

#define SCALARS 5

typedef struct {
    REAL learning_rate, momentum, weight_decay, rescale, clip;
    int decays, clips;
} NAME(scalars);

/* NumPy also rounds a Python float to the dtype of the other operand. */
FUNCTION NAME(scalars) NAME(read)(const double *row)
{
    NAME(scalars) s;

    s.learning_rate = (REAL)row[0];
    s.momentum = (REAL)row[1];
    s.weight_decay = (REAL)row[2];
    s.rescale = (REAL)row[3];
    s.clip = (REAL)row[4];
    /* Compared before the rounding, because a small decay may round to 0. */
    s.decays = row[2] != 0;
    s.clips = row[4] >= 0;
    return s;
}

/* Return the new weight. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    REAL change = gradient * s->rescale;

    /* A NaN passes: both comparisons are false. */
    if (s->clips)
        change = change < -s->clip ? -s->clip : change > s->clip ? s->clip : change;
    if (s->decays)
        change = change + weight * s->weight_decay;
    change = change * s->learning_rate;
    if (STATES == 0)
        return weight - change;
    state[0] = state[0] * s->momentum - change;
    return weight + state[0];
}
