/* Sums of codes: integers of 16 bits without a sign, and their packed form. */

typedef uint16_t count_any __attribute__((aligned(1), may_alias));

/* Bytes of a tile, each of 4 or 8 codes: its sums stay in the first-level cache. */
enum { COUNT_TILE = 512 };

/* Set, or add to, the sums of the codes of some bytes.  `levels` has for each byte one level for
   each of its codes, 4 in a word of 64 bits: such a word is added at once, because no sum has more
   than 16 bits. */
INLINE void add_levels(uint64_t *restrict sums, const uint8_t *restrict bytes,
                       const word_any *restrict levels, size_t words, size_t count, int first)
{
    for (size_t j = 0; j < count; j++)
        for (size_t k = 0; k < words; k++)
            sums[j * words + k] =
                levels[bytes[j] * words + k] + (first ? 0 : sums[j * words + k]);
}

/* Both counts of words as constants: the inner loop is unrolled. */
static void add_payload(uint64_t *sums, const uint8_t *bytes, const word_any *levels, size_t words,
                        size_t count, int first)
{
    if (words == 1)
        add_levels(sums, bytes, levels, 1, count, first);
    else
        add_levels(sums, bytes, levels, 2, count, first);
}

static void sum_payloads(count_any *counts, const Py_buffer *payloads, size_t payload_count,
                         const word_any *levels, size_t words, size_t count)
{
    uint64_t sums[2 * COUNT_TILE];
    const size_t per_byte = 4 * words, longest = COUNT_TILE * per_byte;

    for (size_t from = 0; from < count; from += longest) {
        const size_t length = count - from < longest ? count - from : longest;
        const size_t bytes = (length + per_byte - 1) / per_byte;
        for (size_t i = 0; i < payload_count; i++)
            add_payload(sums, (const uint8_t *)payloads[i].buf + from / per_byte, levels, words,
                        bytes, i == 0);
        memcpy(counts + from, sums, length * sizeof(uint16_t));
    }
}

/* out = (counts + offset) * factor, each rounded to float32 */
CLONES static void scale_all(float_any *restrict out, const count_any *restrict counts, float offset,
                             float factor, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = ((float)counts[i] + offset) * factor;
}

/* Pack counts of 2, 4, 8 or 16 bits, the first in the most significant bits of a byte. */
CLONES static void pack_whole(uint8_t *restrict bytes, const count_any *restrict counts, int width,
                              size_t count)
{
    if (width == 8)
        for (size_t j = 0; j < count; j++)
            bytes[j] = (uint8_t)counts[j];
    else if (width == 4)
        for (size_t j = 0; j < count; j++)
            bytes[j] = (uint8_t)(counts[2 * j] << 4 | counts[2 * j + 1]);
    else
        for (size_t j = 0; j < count; j++)
            bytes[j] = (uint8_t)(counts[4 * j] << 6 | counts[4 * j + 1] << 4 |
                                 counts[4 * j + 2] << 2 | counts[4 * j + 3]);
}

CLONES static void unpack_whole(count_any *restrict counts, const uint8_t *restrict bytes, int width,
                                size_t count)
{
    if (width == 8)
        for (size_t j = 0; j < count; j++)
            counts[j] = bytes[j];
    else if (width == 4)
        for (size_t j = 0; j < count; j++) {
            counts[2 * j] = bytes[j] >> 4;
            counts[2 * j + 1] = bytes[j] & 15;
        }
    else
        for (size_t j = 0; j < count; j++) {
            counts[4 * j] = bytes[j] >> 6;
            counts[4 * j + 1] = bytes[j] >> 4 & 3;
            counts[4 * j + 2] = bytes[j] >> 2 & 3;
            counts[4 * j + 3] = bytes[j] & 3;
        }
}

/* Pack or unpack all counts; the last byte may have fewer of them. */
static void move_counts(uint8_t *bytes, count_any *counts, int width, size_t count, int unpack)
{
    const size_t per_byte = (size_t)(8 / width), whole = count / per_byte;
    const size_t rest = count - whole * per_byte;
    count_any last[4] = {0};

    if (unpack)
        unpack_whole(counts, bytes, width, whole);
    else
        pack_whole(bytes, counts, width, whole);
    if (rest == 0)
        return;
    counts += whole * per_byte, bytes += whole;
    if (unpack) {
        unpack_whole(last, bytes, width, 1);
        memcpy(counts, last, rest * sizeof(uint16_t));
    } else {
        memcpy(last, counts, rest * sizeof(uint16_t));
        pack_whole(bytes, last, width, 1);
    }
}
