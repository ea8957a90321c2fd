/* The norm of the gradients alone, by which all gradients of a flush are clipped.

   Row of scalars: those of gradient.h.  No states.  The update changes nothing. */

#include "gradient.h"

#define SCALARS 3
#define NORMS 1
#define MEASURED_STATES 0

typedef NAME(common_scalars) NAME(scalars);

FUNCTION NAME(scalars) NAME(read)(const double *row) { return NAME(read_common)(row); }

/* Write the numbers whose squares are summed. */
FUNCTION void NAME(measure)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state,
                            REAL *measured)
{
    (void)s;
    (void)weight;
    (void)state;
    measured[0] = gradient;
}

/* The factor of the learning rate, of which there is none. */
FUNCTION double NAME(trust)(const double *row, const double *sums)
{
    (void)row;
    (void)sums;
    return 1;
}

/* Return the weight as it is. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    (void)s;
    (void)gradient;
    (void)state;
    return weight;
}
