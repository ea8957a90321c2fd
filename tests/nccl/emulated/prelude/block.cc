// The threads of a kernel's blocks, one after another on the host's thread that launches it.
//
// Rules from "CUDA C++ Programming Guide": Synchronization Functions (all threads of the block
// reach a barrier) and Warp Shuffle Functions (all lanes that a mask names, but for those that have
// ended, call the same function with the same mask).
//
// The threads run on one stack until one of them has to wait.  It keeps that stack, and the rest
// go on with another.  A kernel that never waits needs no change of stacks.
#include "block.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

namespace emulated {
namespace {

constexpr int invalid_value = 1;                     // cudaErrorInvalidValue
constexpr int illegal_address = 700;                 // cudaErrorIllegalAddress
constexpr int launch_failure = 719;                  // cudaErrorLaunchFailure
constexpr unsigned char poison = 0xA5;

Bits chosen_seed() {
    const char* text = std::getenv("EMULATED_SEED");
    return text ? std::strtoull(text, nullptr, 0) : 0;
}

}  // namespace

int Block::run_all(const Kernel& kernel, const char** words) {
    const Launch& launch = kernel.launch;
    kernel_ = &kernel;
    seed_ = chosen_seed();
    size_ = launch.block[0] * launch.block[1] * launch.block[2];
    threads_.resize(size_);
    error_ = 0;
    if (launch.shared > most_shared) {
        *words = "a block has at most 227 KiB of shared memory";
        return invalid_value;
    }
    const auto count = 1ull * launch.grid[0] * launch.grid[1] * launch.grid[2] - launch.first;
    Shuffled order(count, seed_);
    for (unsigned long long i = 0; i < count && !error_; ++i) {
        run(launch.first + order.next());
    }
    if (error_) {
        // Threads wait there that will never go on.
        stacks_.clear();
        *words = words_.c_str();
    }
    return error_;
}

void Block::run(unsigned long long number) {
    number_ = number;
    kernel_->begin_block(number);
    std::memset(shared_, poison, kernel_->launch.shared + guard_bytes);
    order_ = Shuffled(size_, seed_ + number);
    rest_ = size_;
    while (rest_ && !error_) {
        stacks_.run();
    }
    for (Bits turn = 1; !error_ && release(); ++turn) {
        Shuffled order(size_, seed_ + number + (turn << 32));
        for (unsigned i = 0; i < size_ && !error_; ++i) {
            current_ = static_cast<unsigned>(order.next());
            if (threads_[current_].state == State::runs) stacks_.go_on(threads_[current_].where);
        }
    }
    if (!error_) check_shared();
}

// The body of each stack: the threads that have not begun.
void Block::run_rest() {
    while (rest_) {
        --rest_;
        const auto thread = static_cast<unsigned>(order_.next());
        current_ = thread;
        threads_[thread].state = State::runs;
        kernel_->run_thread(kernel_->data, thread);
        threads_[thread].state = State::ended;
    }
}

void Block::wait(State state, const char* function) {
    Thread& thread = threads_[current_];
    thread.state = state;
    thread.function = function;
    stacks_.leave(thread.where);
}

unsigned Block::meet_block(const char* function, bool vote) {
    threads_[current_].vote = vote;
    wait(State::waits_for_block, function);
    return votes_;
}

unsigned Block::meet_warp(const char* function, unsigned mask, Bits given) {
    if (!(mask >> own_lane() & 1)) {
        fail(launch_failure, std::string(function) + " with a mask that lacks the calling lane");
    }
    Thread& thread = threads_[current_];
    thread.mask = mask;
    thread.given = given;
    wait(State::waits_for_warp, function);
    return threads_[current_].met;
}

// Let those go on that have met all they wait for; return false when all threads have ended.
bool Block::release() {
    const auto ended = [](const Thread& thread) { return thread.state == State::ended; };
    if (std::all_of(threads_.begin(), threads_.end(), ended)) return false;
    bool some = false;
    for (unsigned i = 0; i < size_; ++i) {
        const Thread& thread = threads_[i];
        if (thread.state == State::waits_for_warp) {
            some |= release_lanes(i - i % warp_size, thread.mask, thread.function);
        }
    }
    if (!some && !release_block()) {
        error_ = launch_failure;
        words_ = std::string("kernel ") + kernel_->name + ", block " +
                 place(number_, kernel_->launch.grid) + ": " + waiting();
    }
    return !error_;
}

bool Block::release_block() {
    votes_ = 0;
    for (const Thread& thread : threads_) {
        if (thread.state != State::waits_for_block) return false;
        votes_ += thread.vote;
    }
    for (Thread& thread : threads_) {
        thread.state = State::runs;
    }
    return true;
}

// The same for the lanes of one warp that wait for each other.
bool Block::release_lanes(unsigned first, unsigned mask, const char* function) {
    unsigned met = 0;
    for (unsigned lane = 0; lane < warp_size && first + lane < size_; ++lane) {
        const Thread& thread = threads_[first + lane];
        if (!(mask >> lane & 1) || thread.state == State::ended) continue;
        const bool here = thread.state == State::waits_for_warp && thread.mask == mask &&
                          !std::strcmp(thread.function, function);
        if (!here) return false;
        met |= 1u << lane;
    }
    for (unsigned lane = 0; lane < warp_size; ++lane) {
        if (!(met >> lane & 1)) continue;
        Thread& thread = threads_[first + lane];
        thread.shown = thread.given;
        thread.met = met;
        thread.state = State::runs;
    }
    return true;
}

void Block::check_shared() {
    const unsigned char* begin = shared_ + kernel_->launch.shared;
    const auto kept = [](unsigned char byte) { return byte == poison; };
    if (!std::all_of(begin, begin + guard_bytes, kept)) {
        error_ = illegal_address;
        words_ = std::string("kernel ") + kernel_->name + ", block " +
                 place(number_, kernel_->launch.grid) + ": it writes behind its " +
                 std::to_string(kernel_->launch.shared) + " bytes of dynamic shared memory";
    }
}

void Block::fail(int error, const std::string& what) {
    error_ = error;
    words_ = std::string("kernel ") + kernel_->name + ", block " +
             place(number_, kernel_->launch.grid) + ", thread " +
             place(current_, kernel_->launch.block) + ": " + what;
    stacks_.give_up();
}

// Tell how many threads wait in which function, for a barrier that not all reach.
std::string Block::waiting() const {
    std::map<std::string, unsigned> counts;
    for (const Thread& thread : threads_) {
        ++counts[thread.state == State::ended ? "have ended"
                                              : std::string("wait in ") + thread.function];
    }
    std::string text = "a divergent barrier: of " + std::to_string(size_) + " threads";
    const char* separator = " ";
    for (const auto& [what, count] : counts) {
        text += separator + std::to_string(count) + " " + what;
        separator = ", ";
    }
    return text;
}

std::string Block::place(unsigned long long number, const unsigned* size) const {
    const auto x = number % size[0], y = number / size[0] % size[1], z = number / size[0] / size[1];
    return "(" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + ")";
}

}  // namespace emulated
