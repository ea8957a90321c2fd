/* Updates of arrays of one type by one program. */

#include HEADER_OF(PROGRAM)

CLONES static void NAME(update)(void *weights, const void *gradients, void *const *states,
                                const double *row, size_t count)
{
    const NAME(scalars) scalars = NAME(read)(row);
    const ANY *from = gradients;
    ANY *to = weights, *at[STATES + 1];

    for (int k = 0; k < STATES; k++)
        at[k] = states[k];
    /* The arrays do not overlap. */
#pragma GCC ivdep
    for (size_t i = 0; i < count; i++) {
        REAL state[STATES + 1];
        for (int k = 0; k < STATES; k++)
            state[k] = at[k][i];
        to[i] = NAME(step)(&scalars, to[i], from[i], state);
        for (int k = 0; k < STATES; k++)
            at[k][i] = state[k];
    }
}

#ifdef NORMS
#include "measure_real.h"
#endif

#undef REAL
#undef ROOT
#undef ANY
#undef NAME
