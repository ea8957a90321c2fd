/* Addition of the rescaled gradient, as MXNet's optimizer Test.

   Row of scalars: those of gradient.h, of which only the factor is used.  State: a copy of the
   weight. */

#include "gradient.h"

#define SCALARS 3

typedef struct {
    NAME(common_scalars) common;
} NAME(scalars);

FUNCTION NAME(scalars) NAME(read)(const double *row)
{
    NAME(scalars) s;

    s.common = NAME(read_common)(row);
    return s;
}

/* Return the new weight. */
FUNCTION REAL NAME(step)(const NAME(scalars) *s, REAL weight, REAL gradient, REAL *state)
{
    state[0] = weight + gradient * s->common.rescale;
    return state[0];
}
