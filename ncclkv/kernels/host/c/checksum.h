/* Checksum of the bits of an array and of their positions, as in kernels/host/checksum.py. */

#define STEP UINT64_C(0x9E3779B97F4A7C15)
#define FIRST UINT64_C(0xBF58476D1CE4E5B9)
#define SECOND UINT64_C(0x94D049BB133111EB)
#define FACTOR UINT64_C(0xD6E8FEB86659FD93)

typedef uint64_t word_any __attribute__((aligned(1), may_alias));

static inline uint64_t mixed(uint64_t x)
{
    x ^= x >> 32;
    x *= FIRST;
    x ^= x >> 29;
    return x * SECOND;
}

CLONES static uint64_t sum_words(const char *bytes, size_t count)
{
    const word_any *words = (const word_any *)bytes;
    uint64_t sum = 0;

    for (size_t i = 0; i < count; i++)
        sum += mixed(words[i] + (i + 1) * STEP);
    return sum;
}

/* Checksum of one block, whose last word is filled up with zeros. */
static uint64_t sum_block(const char *bytes, size_t count)
{
    const size_t words = count / sizeof(uint64_t), left = count % sizeof(uint64_t);
    uint64_t sum = sum_words(bytes, words), last = 0;

    if (left == 0)
        return sum;
    memcpy(&last, bytes + count - left, left);
    return sum + mixed(last + (words + 1) * STEP);
}

static uint64_t sum_bytes(const char *bytes, size_t count, size_t block)
{
    uint64_t sum = 0, index = 0;

    for (; count > block; bytes += block, count -= block)
        sum += sum_block(bytes, block) * ((2 * index++ + 1) * FACTOR);
    return count == 0 ? sum : sum + sum_block(bytes, count) * ((2 * index + 1) * FACTOR);
}
