/* The elements of largest magnitude in an array, as in ncclkv/kernels/host/largest.py.

   One pass collects candidates: all elements whose magnitude is at least a floor.  A sample gives
   the first floor.  If the room for candidates is full, only the largest are kept, and the floor rises
   above them.  So the candidates have the largest in any case, unless the first floor was too high:
   then they are fewer than wanted, and a second pass begins without a floor.

   Magnitudes are compared as integers: the bits without the sign have the same order. */

typedef int32_t index_any __attribute__((aligned(1), may_alias));

enum {
    LARGE_TILE = 1024,       /* elements of a tile in the first-level cache */
    MOST_SAMPLED = 65536,    /* elements of a sample at most */
    LEAST_SAMPLED = 64,      /* a smaller sample says nothing */
    SAMPLED_OF = 16,         /* elements for each of a sample at least */
    SIZE_OF_NAN = 0x7f800001 /* all NaNs are equal, and above infinity */
};

struct candidate {
    uint32_t index, size;
};

struct candidates {
    struct candidate *all;
    size_t count, room, wanted;
    uint32_t floor;
};

INLINE uint32_t size_of(float x)
{
    const int32_t size = bits_of(x) & 0x7fffffff;

    return choose(size < SIZE_OF_NAN, (uint32_t)size, SIZE_OF_NAN);
}

/* The size of rank `wanted`, from 1, the largest first; `ties` is how many of that size are among
   the wanted ones.  Digits of 11, 10 and 10 bits are found one after another. */
static uint32_t size_of_rank(const struct candidate *all, size_t count, size_t wanted, size_t *ties)
{
    uint32_t prefix = 0, known = 0;

    for (int shift = 20; shift >= 0; shift -= 10) {
        const uint32_t ones = shift == 20 ? 0x7ff : 0x3ff;
        size_t counts[0x800] = {0};
        uint32_t digit = ones;
        for (size_t i = 0; i < count; i++)
            if ((all[i].size & known) == prefix)
                counts[all[i].size >> shift & ones]++;
        while (counts[digit] < wanted)
            wanted -= counts[digit--];
        prefix |= digit << shift;
        known |= ones << shift;
    }
    *ties = wanted;
    return prefix;
}

/* Keep the largest of the candidates, and of equal ones the first. */
static void keep_wanted(struct candidates *found)
{
    size_t ties, kept = 0;
    uint32_t least;

    if (found->count <= found->wanted)
        return;
    least = size_of_rank(found->all, found->count, found->wanted, &ties);
    for (size_t i = 0; i < found->count; i++) {
        const uint32_t size = found->all[i].size;
        if (size < least || (size == least && ties == 0))
            continue;
        ties -= size == least;
        found->all[kept++] = found->all[i];
    }
    found->count = kept;
    /* Later elements of equal size come behind these. */
    found->floor = least + 1;
}

CLONES static void add_gradients(float_any *restrict residual, const float_any *restrict gradients,
                                 size_t count)
{
    for (size_t i = 0; i < count; i++)
        residual[i] = residual[i] + gradients[i];
}

/* Set a byte for each element: 1 if its size is at least the floor. */
CLONES static void mark_large(uint8_t *restrict large, const float_any *restrict sums,
                              uint32_t floor, size_t count)
{
    const int32_t least = (int32_t)floor;

    for (size_t i = 0; i < count; i++)
        large[i] = (int32_t)size_of(sums[i]) >= least;
}

/* Add the marked elements of a tile to the candidates. */
static void collect(struct candidates *found, const uint8_t *large, const float_any *sums,
                    size_t from, size_t count)
{
    for (size_t i = 0; i < count; i += 8) {
        uint64_t any;
        memcpy(&any, large + i, sizeof(any));
        if (any == 0)
            continue;
        for (size_t j = i; j < i + 8; j++) {
            const uint32_t size = large[j] ? size_of(sums[j]) : 0;
            if (!large[j] || size < found->floor)
                continue;
            if (found->count == found->room) {
                keep_wanted(found);
                if (size < found->floor)
                    continue;
            }
            found->all[found->count++] = (struct candidate){(uint32_t)(from + j), size};
        }
    }
}

/* Collect candidates from the residuals; gradients that are not NULL are added first. */
static void scan(struct candidates *found, float_any *residual, const float_any *gradients,
                 size_t count)
{
    uint8_t large[LARGE_TILE];

    for (size_t from = 0; from < count; from += LARGE_TILE) {
        const size_t length = count - from < LARGE_TILE ? count - from : LARGE_TILE;
        if (gradients != NULL)
            add_gradients(residual + from, gradients + from, length);
        mark_large(large, residual + from, found->floor, length);
        /* The last word of 8 bytes is read whole. */
        memset(large + length, 0, (LARGE_TILE - length) % 8);
        collect(found, large, residual + from, from, length);
    }
}

/* A floor that a few more elements than wanted reach, by a sample; 0 if the sample is too small.
   The distance of the elements varies: a matrix's columns may have as many elements as the stride. */
static uint32_t sample_floor(struct candidate *all, const float_any *residual,
                             const float_any *gradients, size_t count, size_t wanted)
{
    const size_t most = count / SAMPLED_OF;
    const size_t sampled = most < MOST_SAMPLED ? most : MOST_SAMPLED;
    const size_t stride = sampled == 0 ? 1 : count / sampled;
    const double expected = (double)wanted * (double)sampled / (double)count;
    /* Four standard deviations more. */
    const size_t rank = (size_t)(expected + 4 * sqrt(expected) + 4);
    size_t ties;

    if (sampled < LEAST_SAMPLED || rank >= sampled)
        return 0;
    for (size_t i = 0; i < sampled; i++) {
        const size_t at = i * stride + (uint32_t)(i * 2654435761u) % stride;
        all[i].size = size_of(residual[at] + gradients[at]);
    }
    return size_of_rank(all, sampled, rank, &ties);
}

/* Add gradients to residuals, and move the `wanted` largest sums with their indices, in ascending
   order, to arrays of as many elements.  Returns -1 without memory; nothing is changed then. */
static int take_all(float_any *residual, const float_any *gradients, index_any *indices,
                    float_any *values, size_t count, size_t wanted)
{
    struct candidates found = {NULL, 0, wanted + wanted / 3 + LARGE_TILE, wanted, 0};
    const size_t sampled = count / SAMPLED_OF < MOST_SAMPLED ? count / SAMPLED_OF : MOST_SAMPLED;

    found.room = found.room < count ? found.room : count;
    found.all = PyMem_RawMalloc((found.room < sampled ? sampled : found.room) * sizeof(*found.all));
    if (found.all == NULL)
        return -1;
    found.floor = sample_floor(found.all, residual, gradients, count, wanted);
    scan(&found, residual, gradients, count);
    if (found.count < wanted) {
        found.count = found.floor = 0;
        scan(&found, residual, NULL, count);
    }
    keep_wanted(&found);
    for (size_t i = 0; i < wanted; i++) {
        const uint32_t index = found.all[i].index;
        indices[i] = (int32_t)index;
        values[i] = residual[index];
        residual[index] = 0;
    }
    PyMem_RawFree(found.all);
    return 0;
}

/* Add values at indices to an array; return an index that the array does not have, or -1. */
static int64_t add_at(float_any *sums, const index_any *indices, const float_any *values,
                      size_t taken, size_t count)
{
    for (size_t i = 0; i < taken; i++) {
        const int32_t index = indices[i];
        if (index < 0 || (size_t)index >= count)
            return (int64_t)(uint32_t)index;
        sums[index] = sums[index] + values[i];
    }
    return -1;
}
