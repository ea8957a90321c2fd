/* Floats of 16 bits: conversions, and sums and updates whose arithmetic is in float32.

   A conversion adds and multiplies normal numbers alone, so that a processor that flushes subnormal
   numbers to 0 converts them, too. */

#include <stdint.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

typedef uint16_t uint16_any __attribute__((aligned(1), may_alias));

/* Elements of a tile in float32: two tiles and the arrays' lines fit into the first-level cache. */
enum { NARROW_TILE = 1024 };

#define INLINE static inline __attribute__((always_inline))

INLINE uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

INLINE float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* One of two numbers, without a branch: loops with branches are not vectorised. */
INLINE uint32_t choose(int condition, uint32_t yes, uint32_t no)
{
    const uint32_t mask = -(uint32_t)condition;

    return (yes & mask) | (no & ~mask);
}

INLINE float widen_float16(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16;
    const int32_t size = x & 0x7fff;
    /* Exponents begin 112 lower; those of infinities and NaNs are the largest of either type. */
    const uint32_t shift = choose(size < 0x7c00, 112u << 23, 224u << 23);
    const uint32_t normal = ((uint32_t)size << 13) + shift;
    const uint32_t subnormal = bits_of((float)size * 0x1p-24f);

    return float_of(sign | choose(size < 0x0400, subnormal, normal));
}

/* Round to nearest, ties to even. */
INLINE uint16_t narrow_float16(float x)
{
    const uint32_t sign = bits_of(x) & 0x80000000, size = bits_of(x) ^ sign;
    const uint32_t normal = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
    /* The last bit of a number near 0.5 is the smallest number of 16 bits: the addition rounds. */
    const uint32_t subnormal = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
    const uint32_t nan = 0x7e00 | (size >> 13 & 0x3ff);
    /* Signed, as vectors are compared. */
    const int32_t order = (int32_t)size;
    const uint32_t finite = choose(order < 113 << 23, subnormal, normal);
    /* Numbers from 2^16 on; the rounding makes infinity of the largest numbers below. */
    const uint32_t infinite = choose(order > 255 << 23, nan, 0x7c00);

    return (uint16_t)(choose(order < 143 << 23, finite, infinite) | sign >> 16);
}

INLINE float widen_bfloat16(uint16_t x)
{
    return float_of((uint32_t)x << 16);
}

/* Round to nearest, ties to even. */
INLINE uint16_t narrow_bfloat16(float x)
{
    const uint32_t bits = bits_of(x);
    /* All ones for a NaN, which is made quiet, and keeps its other bits. */
    const uint32_t nan = -(uint32_t)((int32_t)(bits & 0x7fffffff) > 255 << 23);

    return (uint16_t)(((bits + ((0x7fff + (bits >> 16 & 1)) & ~nan)) | (0x400000 & nan)) >> 16);
}

typedef void widen_function(float_any *to, const uint16_any *from, size_t count);
typedef void begin_function(float *to, const uint16_any *a, const uint16_any *b, size_t count);
typedef void add_function(float *to, const uint16_any *from, size_t count);
typedef void narrow_function(uint16_any *to, const float_any *from, size_t count);

#define CONVERSIONS(name)                                                                          \
    CLONES static void widen_all_##name(float_any *restrict to, const uint16_any *restrict from,   \
                                        size_t count)                                              \
    {                                                                                              \
        for (size_t i = 0; i < count; i++)                                                         \
            to[i] = widen_##name(from[i]);                                                         \
    }                                                                                              \
    CLONES static void begin_all_##name(float *restrict to, const uint16_any *restrict a,          \
                                        const uint16_any *restrict b, size_t count)                \
    {                                                                                              \
        for (size_t i = 0; i < count; i++)                                                         \
            to[i] = widen_##name(a[i]) + widen_##name(b[i]);                                       \
    }                                                                                              \
    CLONES static void add_all_##name(float *restrict to, const uint16_any *restrict from,         \
                                      size_t count)                                                \
    {                                                                                              \
        for (size_t i = 0; i < count; i++)                                                         \
            to[i] = to[i] + widen_##name(from[i]);                                                 \
    }                                                                                              \
    CLONES static void narrow_all_##name(uint16_any *restrict to, const float_any *restrict from,  \
                                         size_t count)                                             \
    {                                                                                              \
        for (size_t i = 0; i < count; i++)                                                         \
            to[i] = narrow_##name(from[i]);                                                        \
    }

CONVERSIONS(float16)
CONVERSIONS(bfloat16)

/* A type of 16 bits. */
struct narrow {
    widen_function *widen;
    begin_function *begin; /* to = a + b */
    add_function *add;     /* to += from */
    narrow_function *narrow;
};

static struct narrow float16 = {widen_all_float16, begin_all_float16, add_all_float16,
                                narrow_all_float16};
static const struct narrow bfloat16 = {widen_all_bfloat16, begin_all_bfloat16, add_all_bfloat16,
                                       narrow_all_bfloat16};

#if defined(__x86_64__)

/* The processor's own conversions, which take a quarter of the time. */
#define WITH_F16C __attribute__((target("avx,f16c")))

WITH_F16C static void widen_f16c(float_any *to, const uint16_any *from, size_t count)
{
    size_t i = 0;

    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps((float *)to + i,
                         _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
    for (; i < count; i++)
        to[i] = widen_float16(from[i]);
}

WITH_F16C static void begin_f16c(float *to, const uint16_any *a, const uint16_any *b, size_t count)
{
    size_t i = 0;

    for (; i + 8 <= count; i += 8) {
        const __m256 first = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(a + i)));
        const __m256 second = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(b + i)));
        _mm256_storeu_ps(to + i, _mm256_add_ps(first, second));
    }
    for (; i < count; i++)
        to[i] = widen_float16(a[i]) + widen_float16(b[i]);
}

WITH_F16C static void add_f16c(float *to, const uint16_any *from, size_t count)
{
    size_t i = 0;

    for (; i + 8 <= count; i += 8) {
        const __m256 part = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i)));
        _mm256_storeu_ps(to + i, _mm256_add_ps(_mm256_loadu_ps(to + i), part));
    }
    for (; i < count; i++)
        to[i] = to[i] + widen_float16(from[i]);
}

WITH_F16C static void narrow_f16c(uint16_any *to, const float_any *from, size_t count)
{
    size_t i = 0;

    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps((const float *)from + i),
                                                              _MM_FROUND_TO_NEAREST_INT));
    for (; i < count; i++)
        to[i] = narrow_float16(from[i]);
}

#endif

/* Use the processor's conversions if it has them. */
static void choose_conversions(void)
{
#if defined(__x86_64__)
    unsigned a, b, c = 0, d;

    /* Older compilers do not have the name f16c in __builtin_cpu_supports. */
    if (__builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C))
        float16 = (struct narrow){widen_f16c, begin_f16c, add_f16c, narrow_f16c};
#endif
}

/* out = the sum of parts, or that divided by their count: made in float32, and rounded once unless
   out is `wide`, of float32. */
static void total_narrow(const struct narrow *type, const Py_buffer *parts, size_t part_count,
                         char *out, int wide, size_t count, int average, int stream)
{
    float sum[NARROW_TILE];
    uint16_any rounded[NARROW_TILE];
    const size_t size = wide ? sizeof(float) : sizeof(uint16_t);
    const char *tile = wide ? (const char *)sum : (const char *)rounded;

    for (size_t from = 0; from < count; from += NARROW_TILE) {
        const size_t length = count - from < NARROW_TILE ? count - from : NARROW_TILE;
        const uint16_any *first = (const uint16_any *)parts[0].buf + from;
        if (part_count == 1)
            type->widen(sum, first, length);
        else
            type->begin(sum, first, (const uint16_any *)parts[1].buf + from, length);
        for (size_t part = 2; part < part_count; part++)
            type->add(sum, (const uint16_any *)parts[part].buf + from, length);
        if (average)
            divide_float(sum, (float)part_count, length);
        if (!wide)
            type->narrow(rounded, sum, length);
        /* Written last: out may be one of the parts. */
        move(out + from * size, tile, length * size, stream);
    }
}

/* Update weights tile by tile in float32.  With a master, which is not NULL, the master is updated,
   and the weights become its rounding. */
static void update_narrow(const struct narrow *type, update_function *function, uint16_any *weights,
                          const uint16_any *gradients, float_any *master, void *const *states,
                          int state_count, const double *row, size_t count)
{
    float wide[NARROW_TILE], given[NARROW_TILE];
    void *at[MAX_STATES];

    for (size_t from = 0; from < count; from += NARROW_TILE) {
        const size_t length = count - from < NARROW_TILE ? count - from : NARROW_TILE;
        float_any *updated = master == NULL ? wide : master + from;
        for (int k = 0; k < state_count; k++)
            at[k] = (float_any *)states[k] + from;
        if (master == NULL)
            type->widen(wide, weights + from, length);
        type->widen(given, gradients + from, length);
        function(updated, given, at, row, length);
        type->narrow(weights + from, updated, length);
    }
}

/* Add sums of squares tile by tile in float32, those of a master if it is not NULL.  A tile is a
   block of the sums, so that the additions are those of float32 weights. */
static void measure_narrow(const struct narrow *type, measure_function *function,
                           const uint16_any *weights, const uint16_any *gradients,
                           const float_any *master, void *const *states, int state_count,
                           const double *row, size_t count, double *sums)
{
    float wide[MEASURED_BLOCK], given[MEASURED_BLOCK];
    void *at[MAX_STATES];

    for (size_t from = 0; from < count; from += MEASURED_BLOCK) {
        const size_t length = count - from < MEASURED_BLOCK ? count - from : MEASURED_BLOCK;
        const float_any *measured = master == NULL ? wide : master + from;
        for (int k = 0; k < state_count; k++)
            at[k] = (float_any *)states[k] + from;
        if (master == NULL)
            type->widen(wide, weights + from, length);
        type->widen(given, gradients + from, length);
        function(measured, given, at, row, length, sums);
    }
}
