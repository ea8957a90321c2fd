/* A short sum of ranks that share memory: copy, tell, see that all have, add up, tell.

   A flag is written after what it tells of and read before it, on any processor. */

#include <sched.h>
#include <stdint.h>
#include <time.h>

/* What a rank shares: its flags, its notes, and its copy for this sum. */
struct shared {
    int64_t *flags, *notes;
    char *copy;
};

/* The numbers of a meeting, as comm/shm/sequence.py has them. */
struct meeting {
    long long place, note, entered, done, free, before, over, mark, first, second, looks;
};

/* Index of the time in a note. */
enum { ARRIVAL = 9 };

enum outcome { NOT_BEGUN, BEGUN, COMPLETE };

static void tell(const struct shared *rank, long long place, int64_t value)
{
    __atomic_store_n(&rank->flags[place], value, __ATOMIC_RELEASE);
}

/* Whether all ranks, or all but one of that number, have written as much. */
static int have_met(const struct shared *ranks, size_t number, size_t but, long long place,
                    int64_t value)
{
    for (size_t i = 0; i < number; i++)
        if (i != but && __atomic_load_n(&ranks[i].flags[place], __ATOMIC_ACQUIRE) < value)
            return 0;
    return 1;
}

static int are_alike(const struct shared *ranks, size_t number, const struct meeting *m)
{
    for (size_t i = 0; i < number; i++) {
        const int64_t *note = ranks[i].notes + m->note;
        if (note[0] != m->mark || note[1] != m->first || note[2] != m->second)
            return 0;
    }
    return 1;
}

/* The clock of Python's time.monotonic_ns. */
static int64_t nanoseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Copy and tell, once, when nobody needs what was there before; then give the others a moment. */
static enum outcome come(const struct shared *ranks, size_t number, size_t own,
                         const struct meeting *m, const Py_buffer *send)
{
    int64_t *note = ranks[own].notes + m->note;

    if (ranks[own].flags[m->place] < m->entered) {
        if (!have_met(ranks, number, own, m->place, m->free) ||
            !have_met(ranks, number, number, m->before, m->over))
            return NOT_BEGUN;
        memcpy(ranks[own].copy, send->buf, (size_t)send->len);
        note[0] = m->mark;
        note[1] = m->first;
        note[2] = m->second;
        note[ARRIVAL] = nanoseconds();
        tell(&ranks[own], m->place, m->entered);
    }
    for (long long look = 0; !have_met(ranks, number, own, m->place, m->entered); look++) {
        if (look == m->looks)
            return BEGUN;
        Py_BEGIN_ALLOW_THREADS
        sched_yield();
        Py_END_ALLOW_THREADS
    }
    return are_alike(ranks, number, m) ? COMPLETE : BEGUN;
}
