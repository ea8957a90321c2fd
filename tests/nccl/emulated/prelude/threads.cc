// What kernels call: the block of the host's thread that runs them, its clock and its arithmetic.
#include "threads.h"

#include "block.h"

#include <ctime>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace emulated {
namespace {

Block& own() {
    // On the heap, since what a library has for each thread takes memory in all of them.
    static thread_local std::unique_ptr<Block> block = std::make_unique<Block>();
    return *block;
}

}  // namespace

int run(const Kernel& kernel, const char** words) {
#ifdef __SSE__
    // Flush to zero, denormals are zeros.
    const unsigned before = _mm_getcsr();
    if (kernel.flushes) _mm_setcsr(before | 0x8040);
#endif
    const int error = own().run_all(kernel, words);
#ifdef __SSE__
    _mm_setcsr(before);
#endif
    return error;
}

void fail(int error, const char* words) { own().fail(error, words); }

unsigned meet_block(const char* name, bool vote) { return own().meet_block(name, vote); }

unsigned meet_warp(const char* name, unsigned mask, Bits given) {
    return own().meet_warp(name, mask, given);
}

Bits given_by(unsigned lane) { return own().given_by(lane); }

unsigned own_lane() { return own().own_lane(); }

long long ticks() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 2 * (now.tv_sec * 1000000000ll + now.tv_nsec);
}

void sleep(unsigned ns) {
    const timespec time{ns / 1000000000, ns % 1000000000};
    nanosleep(&time, nullptr);
}

void* dynamic_shared_memory() { return own().shared(); }

}  // namespace emulated
