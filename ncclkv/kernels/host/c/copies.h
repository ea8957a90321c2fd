/* Copies of bytes, through the caches or with non-temporal stores. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Copy bytes with non-temporal stores: lines that are written whole need not be read first. */
static void stream_bytes(char *to, const char *from, size_t count)
{
#if defined(__SSE2__)
    const size_t width = sizeof(__m128i);
    size_t head = (size_t)(-(uintptr_t)to) % width;
    head = head < count ? head : count;
    memcpy(to, from, head);
    to += head, from += head, count -= head;
    for (; count >= 4 * width; to += 4 * width, from += 4 * width, count -= 4 * width) {
        const __m128i *source = (const __m128i *)from;
        __m128i *target = (__m128i *)to;
        __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
        __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
        _mm_stream_si128(target, a);
        _mm_stream_si128(target + 1, b);
        _mm_stream_si128(target + 2, c);
        _mm_stream_si128(target + 3, d);
    }
#endif
    memcpy(to, from, count);
}

/* Order non-temporal stores before later stores, such as the flag that publishes them. */
static void settle(int stream)
{
#if defined(__SSE2__)
    if (stream)
        _mm_sfence();
#else
    (void)stream;
#endif
}

/* Copy bytes that do not overlap. */
static void move(char *to, const char *from, size_t count, int stream)
{
    if (stream)
        stream_bytes(to, from, count);
    else
        memcpy(to, from, count);
}
