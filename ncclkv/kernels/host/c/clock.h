/* The clock of the times that ranks show each other: that of Python's time.monotonic_ns. */

#include <stdint.h>
#include <time.h>

enum { NOT_SET = -1 };

/* The time of a seeded world, whose ranks are threads of this process; NOT_SET in any other run. */
static int64_t set_time = NOT_SET;

static int64_t nanoseconds(void)
{
    struct timespec now;

    if (set_time != NOT_SET)
        return set_time;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
