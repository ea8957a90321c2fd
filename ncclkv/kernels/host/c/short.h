/* A short sum of ranks that share memory: copy, publish, wait until all ranks have, sum, publish.

   A rank writes a flag after the memory that the flag is about, and others read the flag before
   that memory, on any processor. */

#include <sched.h>
#include <stdint.h>
#include <time.h>

/* Memory that a rank shares: its flags, its headers, and its copy for this sum. */
struct rank_memory {
    int64_t *flags, *headers;
    char *copy;
};

/* A slot of a collective, as `CollectiveSlot` of comm/shm/sequence.py: indices of its flag and
   header, flag values of its phases, the previous collective's flag, and the header's words. */
struct slot {
    long long flag, header, entered, done, free, previous_flag, previous_done;
    long long words[3], polls;
};

enum { SLOT_NUMBERS = sizeof(struct slot) / sizeof(long long) };

/* Index of the arrival time in a header. */
enum { ARRIVAL = 9 };

enum outcome { NOT_BEGUN, BEGUN, COMPLETE };

static void publish(const struct rank_memory *rank, long long flag, int64_t value)
{
    __atomic_store_n(&rank->flags[flag], value, __ATOMIC_RELEASE);
}

/* Return whether the flags of all ranks, except one of them, have reached a value. */
static int all_reached(const struct rank_memory *ranks, size_t number, size_t except,
                       long long flag, int64_t value)
{
    for (size_t i = 0; i < number; i++)
        if (i != except && __atomic_load_n(&ranks[i].flags[flag], __ATOMIC_ACQUIRE) < value)
            return 0;
    return 1;
}

static int headers_match(const struct rank_memory *ranks, size_t number, const struct slot *slot)
{
    for (size_t i = 0; i < number; i++)
        for (int k = 0; k < 3; k++)
            if (ranks[i].headers[slot->header + k] != slot->words[k])
                return 0;
    return 1;
}

/* The clock of Python's time.monotonic_ns. */
static int64_t nanoseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Copy and publish, once, when no rank reads the old copy any more; then poll the others. */
static enum outcome enter(const struct rank_memory *ranks, size_t number, size_t rank,
                          const struct slot *slot, const Py_buffer *send)
{
    int64_t *header = ranks[rank].headers + slot->header;

    if (ranks[rank].flags[slot->flag] < slot->entered) {
        if (!all_reached(ranks, number, rank, slot->flag, slot->free) ||
            !all_reached(ranks, number, number, slot->previous_flag, slot->previous_done))
            return NOT_BEGUN;
        memcpy(ranks[rank].copy, send->buf, (size_t)send->len);
        for (int k = 0; k < 3; k++)
            header[k] = slot->words[k];
        header[ARRIVAL] = nanoseconds();
        publish(&ranks[rank], slot->flag, slot->entered);
    }
    for (long long poll = 0; !all_reached(ranks, number, rank, slot->flag, slot->entered); poll++) {
        if (poll == slot->polls)
            return BEGUN;
        Py_BEGIN_ALLOW_THREADS
        sched_yield();
        Py_END_ALLOW_THREADS
    }
    return headers_match(ranks, number, slot) ? COMPLETE : BEGUN;
}
