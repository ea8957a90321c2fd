/* Codes of gradients in few bits, as in ncclkv/compress: what a code does not send stays in the
   residual.

   Codes are made in the first-level cache, a byte for each element, and packed from there.  Masks
   replace branches, so that the loops are vectorised: a branch takes 30 times as long. */

/* Elements of a tile: a multiple of the elements of a word of every codec. */
enum { CODE_TILE = 1024 };

INLINE uint32_t mask(int condition)
{
    return -(uint32_t)condition;
}

INLINE float magnitude(float x)
{
    return float_of(bits_of(x) & 0x7fffffff);
}

/* Add gradients to residuals, subtract what the codes send, and return the count of residuals that
   stay beyond the codec's bound. */
typedef size_t quantise_function(float_any *restrict residual, const float_any *restrict gradients,
                                 uint8_t *restrict codes, float threshold, size_t count);

/* Pack codes, the first in the most significant bits. */
typedef void pack_function(uint8_t *restrict bytes, const uint8_t *restrict codes, size_t count);

/* 11: the threshold; 10: its negative; 00: nothing. */
CLONES static size_t quantise_2bit(float_any *restrict residual, const float_any *restrict gradients,
                                   uint8_t *restrict codes, float threshold, size_t count)
{
    const uint32_t size = bits_of(threshold);
    uint32_t beyond = 0;

    for (size_t i = 0; i < count; i++) {
        const float sum = residual[i] + gradients[i];
        const uint32_t up = mask(sum >= threshold), down = mask(sum <= -threshold);
        /* Subtracting +0 keeps -0. */
        const float left = sum - float_of((size & (up | down)) | (0x80000000 & down));
        residual[i] = left;
        codes[i] = (uint8_t)((up & 3) | (down & 2));
        beyond += mask(magnitude(left) > threshold) & 1;
    }
    return beyond;
}

CLONES static void pack_2bit(uint8_t *restrict bytes, const uint8_t *restrict codes, size_t count)
{
    for (size_t j = 0; j < count; j++)
        bytes[j] = (uint8_t)(codes[4 * j] << 6 | codes[4 * j + 1] << 4 | codes[4 * j + 2] << 2 |
                             codes[4 * j + 3]);
}

/* 1: one; 0: its negative. */
CLONES static size_t quantise_1bit(float_any *restrict residual, const float_any *restrict gradients,
                                   uint8_t *restrict codes, float threshold, size_t count)
{
    const uint32_t one = bits_of(1.0f);
    uint32_t beyond = 0;

    for (size_t i = 0; i < count; i++) {
        const float sum = residual[i] + gradients[i];
        const uint32_t up = mask(sum > threshold);
        const float left = sum - float_of(one | (0x80000000 & ~up));
        residual[i] = left;
        codes[i] = (uint8_t)(up & 1);
        beyond += mask(magnitude(left) > 4.0f) & 1;
    }
    return beyond;
}

CLONES static void pack_1bit(uint8_t *restrict bytes, const uint8_t *restrict codes, size_t count)
{
    for (size_t j = 0; j < count; j++)
        bytes[j] = (uint8_t)(codes[8 * j] << 7 | codes[8 * j + 1] << 6 | codes[8 * j + 2] << 5 |
                             codes[8 * j + 3] << 4 | codes[8 * j + 4] << 3 | codes[8 * j + 5] << 2 |
                             codes[8 * j + 6] << 1 | codes[8 * j + 7]);
}

/* A codec. */
struct codec {
    const char *name;
    size_t per_byte; /* codes in a byte */
    quantise_function *quantise;
    pack_function *pack;
};

static const struct codec codecs[] = {
    {"1bit", 8, quantise_1bit, pack_1bit},
    {"2bit", 4, quantise_2bit, pack_2bit},
};

static const struct codec *find_codec(const char *name)
{
    for (size_t i = 0; i < sizeof(codecs) / sizeof(codecs[0]); i++)
        if (strcmp(codecs[i].name, name) == 0)
            return &codecs[i];
    return NULL;
}

/* Bytes of the payload of some elements: whole words of 4 bytes. */
static size_t payload_bytes(const struct codec *codec, size_t count)
{
    const size_t word = 4 * codec->per_byte;

    return (count + word - 1) / word * 4;
}

/* Encode an array; codes behind the last element are 0. */
static size_t encode_all(const struct codec *codec, float_any *residual, const float_any *gradients,
                         uint8_t *payload, float threshold, size_t count)
{
    uint8_t codes[CODE_TILE];
    size_t beyond = 0;

    for (size_t from = 0; from < count; from += CODE_TILE) {
        const size_t length = count - from < CODE_TILE ? count - from : CODE_TILE;
        const size_t bytes = payload_bytes(codec, length);
        beyond += codec->quantise(residual + from, gradients + from, codes, threshold, length);
        memset(codes + length, 0, bytes * codec->per_byte - length);
        codec->pack(payload + from / codec->per_byte, codes, bytes);
    }
    return beyond;
}
