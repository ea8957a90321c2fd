// What a kernel for the host and threads.cc, which runs its threads, offer each other.
//
// The threads of a block run one after another.  One that waits for others gives way to them, and
// goes on when all of them have come.
#pragma once

#include "../runtime/kernel.h"

namespace emulated {

using Bits = unsigned long long;

struct Kernel {
    const char* name;
    const Launch& launch;
    bool flushes;                // subnormal numbers of single precision are zeros: -ftz=true
    void (*begin_block)(unsigned long long block);
    void (*run_thread)(void* data, unsigned thread);
    void* data;
};

// Run all threads of a launch, in an order that EMULATED_SEED shuffles.  Return 0, or an error with
// its words, which are valid until the next call of this thread.
int run(const Kernel& kernel, const char** words);

// What only threads of a kernel may call:

// End the launch with an error of CUDA's.
[[noreturn]] void fail(int error, const char* words);

// Wait for all threads of the block in the function `name`; return how many of them gave true.
unsigned meet_block(const char* name, bool vote);

// Wait for all lanes of `mask` in the function `name`; return those that came: the others have
// ended.  What each of them gave can be read until this thread's next call.
unsigned meet_warp(const char* name, unsigned mask, Bits given);
Bits given_by(unsigned lane);

// Return this thread's number in its warp.
unsigned own_lane();

// Return the cycles of a clock of 2 GHz; wait for a time.
long long ticks();
void sleep(unsigned ns);

// Return the block's dynamic shared memory: the same address for all blocks of a host's thread.
void* dynamic_shared_memory();

}  // namespace emulated
