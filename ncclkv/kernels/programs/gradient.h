/* The gradient as programs read it: rescaled, clipped, with weight decay.  Included by a program's
   header.

   The last three numbers of every row: weight decay, factor of the gradient, and the bound of the
   product (negative: no bound). */

typedef struct {
    REAL weight_decay, rescale, clip;
    int decays, clips;
} NAME(common_scalars);

/* NumPy also rounds a Python float to the dtype of the other operand. */
FUNCTION NAME(common_scalars) NAME(read_common)(const double *row)
{
    NAME(common_scalars) s;

    s.weight_decay = (REAL)row[0];
    s.rescale = (REAL)row[1];
    s.clip = (REAL)row[2];
    /* Compared before the rounding, because a small decay may round to 0. */
    s.decays = row[0] != 0;
    s.clips = row[2] >= 0;
    return s;
}

/* Clamp to a bound.  A NaN passes: both comparisons are false. */
FUNCTION REAL NAME(clamp)(REAL x, REAL bound) { return x < -bound ? -bound : x > bound ? bound : x; }

/* The sign: 1, -1 or 0; a NaN passes. */
FUNCTION REAL NAME(sign)(REAL x) { return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x; }

/* The gradient without weight decay. */
FUNCTION REAL NAME(clipped)(const NAME(common_scalars) *s, REAL gradient)
{
    REAL change = gradient * s->rescale;

    return s->clips ? NAME(clamp)(change, s->clip) : change;
}

/* A number with weight decay. */
FUNCTION REAL NAME(decayed)(const NAME(common_scalars) *s, REAL x, REAL weight)
{
    return s->decays ? x + weight * s->weight_decay : x;
}

/* The gradient with weight decay, which the bound does not limit. */
FUNCTION REAL NAME(clipped_and_decayed)(const NAME(common_scalars) *s, REAL gradient, REAL weight)
{
    return NAME(decayed)(s, NAME(clipped)(s, gradient), weight);
}

/* The gradient with weight decay, both within the bound. */
FUNCTION REAL NAME(decayed_and_clipped)(const NAME(common_scalars) *s, REAL gradient, REAL weight)
{
    REAL change = NAME(decayed)(s, gradient * s->rescale, weight);

    return s->clips ? NAME(clamp)(change, s->clip) : change;
}

/* The factor that brings the norm of all gradients to a bound, if it is larger.  A NaN passes.

   The total: the sum of the squares of all gradients, before they are rescaled, and the bound. */
FUNCTION double NAME(global_scale)(const double *total, double rescale)
{
    const double scale = total[1] / (sqrt(total[0]) * fabs(rescale) + 1e-8);

    return scale >= 1 ? 1 : scale;
}
