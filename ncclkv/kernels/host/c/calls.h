/* A page of calls, as comm/diagnosis/call_ring.py: the count of calls, and the last of them.

   Other processes read the page at any time.  A call's index is stored first and the count last, so
   that no reader takes an old call for a new one. */

enum { CALLS = 1024 };

struct call {
    int64_t index, text, nanoseconds;
};

struct calls {
    int64_t count;
    struct call ring[CALLS];
};

#define DIGEST_FACTOR 0x9E3779B97F4A7C15u
#define DIGEST_MASK 0x7FFFFFFFFFFFFFFFu

static void append(struct calls *calls, int64_t index, int64_t text)
{
    struct call *call = &calls->ring[index % CALLS];

    __atomic_store_n(&call->index, index, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    call->text = text;
    call->nanoseconds = nanoseconds();
    __atomic_store_n(&calls->count, index, __ATOMIC_RELEASE);
}
