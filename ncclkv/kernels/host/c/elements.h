/* Loops over elements of one type.  Included once for each type, with

     REAL     the type
     ANY      the same, at any address
     NAME(x)  the name of a function for this type

   Each operation rounds once, as in NumPy: the compiler must not contract them.  A tile is local
   memory, which overlaps no array. */

/* tile = a + b */
CLONES static void NAME(begin)(REAL *restrict tile, const ANY *restrict a, const ANY *restrict b,
                               size_t count)
{
    for (size_t i = 0; i < count; i++)
        tile[i] = a[i] + b[i];
}

/* tile += a, then b.  Two at a time: memory is faster when several streams are read. */
CLONES static void NAME(add_two)(REAL *restrict tile, const ANY *restrict a, const ANY *restrict b,
                                 size_t count)
{
    for (size_t i = 0; i < count; i++)
        tile[i] = (tile[i] + a[i]) + b[i];
}

/* tile += part */
CLONES static void NAME(add)(REAL *restrict tile, const ANY *restrict part, size_t count)
{
    for (size_t i = 0; i < count; i++)
        tile[i] = tile[i] + part[i];
}

/* tile /= divisor */
CLONES static void NAME(divide)(REAL *tile, REAL divisor, size_t count)
{
    for (size_t i = 0; i < count; i++)
        tile[i] = tile[i] / divisor;
}

/* tile = the sum of elements [from, from + count) of parts, in their order. */
static void NAME(sum)(REAL *tile, const Py_buffer *parts, size_t part_count, size_t from,
                      size_t count)
{
    const ANY *first = (const ANY *)parts[0].buf + from;
    size_t part = 2;

    if (part_count == 1) {
        memcpy(tile, first, count * sizeof(REAL));
        return;
    }
    NAME(begin)(tile, first, (const ANY *)parts[1].buf + from, count);
    for (; part + 1 < part_count; part += 2)
        NAME(add_two)(tile, (const ANY *)parts[part].buf + from,
                      (const ANY *)parts[part + 1].buf + from, count);
    if (part < part_count)
        NAME(add)(tile, (const ANY *)parts[part].buf + from, count);
}

/* out = the sum of parts, or that divided by their count. */
static void NAME(total)(const Py_buffer *parts, size_t part_count, char *out, size_t count,
                        int average, int stream)
{
    REAL tile[TILE_BYTES / sizeof(REAL)];
    const size_t longest = TILE_BYTES / sizeof(REAL);

    for (size_t from = 0; from < count; from += longest) {
        size_t length = count - from < longest ? count - from : longest;
        NAME(sum)(tile, parts, part_count, from, length);
        if (average)
            NAME(divide)(tile, (REAL)part_count, length);
        /* Written last: out may be one of the parts. */
        move(out + from * sizeof(REAL), (const char *)tile, length * sizeof(REAL), stream);
    }
}

#undef REAL
#undef ANY
#undef NAME
