/* A short sum of ranks that share memory: copy, publish, wait until all ranks have, sum, publish.

   A rank writes a flag after the memory that the flag is about, and others read the flag before
   that memory, on any processor. */

#include <sched.h>
#include <stdint.h>

/* Memory that a rank shares: its flags, its headers, and its copy for this sum. */
struct rank_memory {
    int64_t *flags, *headers;
    char *copy;
};

/* The sequence table, as comm/shm/sequence.py: slots in the ring, values of a flag for a collective,
   its last phase, words of a header, and the index of the arrival time among them. */
enum { RING = 1024, PHASES = 1 << 24, DONE = PHASES - 1, HEADER_WORDS = 10, ARRIVAL = 9 };

/* A collective: its index, that of the collective which had the staging memory before or 0, the
   words of its header, and how often the other ranks are polled. */
struct collective {
    long long index, previous, words[3], polls;
};

enum { COLLECTIVE_INTEGERS = sizeof(struct collective) / sizeof(long long) };

/* The slot of a collective: indices of its flag and its header, and flag values of its phases. */
struct slot {
    long long flag, header;
    int64_t entered, done;
};

static struct slot slot_of(long long index)
{
    const long long flag = index % RING, base = index * PHASES;

    return (struct slot){flag, flag * HEADER_WORDS, base + 1, base + DONE};
}

enum outcome { NOT_BEGUN, BEGUN, COMPLETE };

static void publish(const struct rank_memory *rank, long long flag, int64_t value)
{
    __atomic_store_n(&rank->flags[flag], value, __ATOMIC_RELEASE);
}

/* Return whether the flags of all ranks, except one of them, have reached a value. */
static int all_reached(const struct rank_memory *ranks, size_t size, size_t except,
                       long long flag, int64_t value)
{
    for (size_t i = 0; i < size; i++)
        if (i != except && __atomic_load_n(&ranks[i].flags[flag], __ATOMIC_ACQUIRE) < value)
            return 0;
    return 1;
}

static int headers_match(const struct rank_memory *ranks, size_t size, long long header,
                         const long long *words)
{
    for (size_t i = 0; i < size; i++)
        for (int k = 0; k < 3; k++)
            if (ranks[i].headers[header + k] != words[k])
                return 0;
    return 1;
}

/* Return whether no rank uses the slot, or this rank's staging memory, for an earlier collective. */
static int is_free(const struct rank_memory *ranks, size_t size, const struct collective *call)
{
    const struct slot earlier = slot_of(call->index - RING), previous = slot_of(call->previous);

    if (call->index > RING && !all_reached(ranks, size, size, earlier.flag, earlier.done))
        return 0;
    return call->previous == 0 || all_reached(ranks, size, size, previous.flag, previous.done);
}

/* Copy and publish, once, when no rank reads the old copy any more; then poll the others. */
static enum outcome enter(const struct rank_memory *ranks, size_t size, size_t rank,
                          const struct collective *call, const Py_buffer *send)
{
    const struct slot slot = slot_of(call->index);
    int64_t *header = ranks[rank].headers + slot.header;

    if (ranks[rank].flags[slot.flag] < slot.entered) {
        if (!is_free(ranks, size, call))
            return NOT_BEGUN;
        memcpy(ranks[rank].copy, send->buf, (size_t)send->len);
        for (int k = 0; k < 3; k++)
            header[k] = call->words[k];
        header[ARRIVAL] = nanoseconds();
        publish(&ranks[rank], slot.flag, slot.entered);
    }
    for (long long poll = 0; !all_reached(ranks, size, rank, slot.flag, slot.entered); poll++) {
        if (poll == call->polls)
            return BEGUN;
        Py_BEGIN_ALLOW_THREADS
        sched_yield();
        Py_END_ALLOW_THREADS
    }
    return headers_match(ranks, size, slot.header, call->words) ? COMPLETE : BEGUN;
}
