// A block of a kernel, as one of the host's threads runs it.
#pragma once

#include "shuffled.h"
#include "stacks.h"
#include "threads.h"

#include <string>

namespace emulated {

constexpr unsigned warp_size = 32;
constexpr std::size_t most_shared = 227 << 10;       // of a block, for compute capability 9.0
constexpr std::size_t guard_bytes = 256;             // behind it, where nobody may write

enum class State { runs, waits_for_block, waits_for_warp, ended };

struct Thread {
    State state;
    std::jmp_buf where;          // it goes on there
    const char* function;        // in which it waits
    unsigned mask;               // the lanes that it waits for
    bool vote;
    Bits given, shown;           // what it gave; what others may read
    unsigned met;                // the lanes that came
};

// What one of the host's threads needs to run blocks, one after another.
class Block {
public:
    int run_all(const Kernel& kernel, const char** words);
    [[noreturn]] void fail(int error, const std::string& what);
    unsigned meet_block(const char* function, bool vote);
    unsigned meet_warp(const char* function, unsigned mask, Bits given);
    Bits given_by(unsigned lane) const { return threads_[first_lane() + lane].shown; }
    unsigned own_lane() const { return current_ % warp_size; }
    void* shared() { return shared_; }

private:
    unsigned first_lane() const { return current_ - own_lane(); }
    void run(unsigned long long number);
    void run_rest();
    void wait(State state, const char* function);
    bool release();
    bool release_block();
    bool release_lanes(unsigned first, unsigned mask, const char* function);
    void check_shared();
    std::string waiting() const;
    std::string place(unsigned long long number, const unsigned* size) const;

    const Kernel* kernel_ = nullptr;
    Bits seed_ = 0;
    unsigned long long number_ = 0;
    unsigned size_ = 0;          // in threads
    unsigned rest_ = 0;          // so many of them have not begun
    unsigned current_ = 0;       // the thread that runs
    unsigned votes_ = 0;         // of the last barrier
    Shuffled order_{1, 0};
    std::vector<Thread> threads_;
    Stacks stacks_{[](void* block) { static_cast<Block*>(block)->run_rest(); }, this};
    int error_ = 0;
    std::string words_;
    alignas(16) unsigned char shared_[most_shared + guard_bytes];
};

}  // namespace emulated
