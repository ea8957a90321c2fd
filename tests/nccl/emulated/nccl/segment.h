// Memory that the ranks of one communicator share, and how they wake each other.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace emulated_nccl {

constexpr int most_ranks = 64;  // connections are bits of a word
constexpr std::size_t slot_bytes = 256 << 10;
constexpr std::size_t box_bytes = 64 << 10;

// What a rank tells the others of itself when it joins.
struct Who {
    std::int32_t rank, process, device, version;
    std::uint64_t started;  // when the process did: its number may be another's later
    std::uint64_t host;
    char gpu[32];           // its place on the bus
};

// What a rank does in a collective; all ranks must do the same.
struct Description {
    std::int32_t kind, type, op, root;
    std::uint64_t count;
};

// What a rank tells all others outside of streams.
struct Note {
    enum Purpose : std::int32_t { join, connect, split, identity, window } purpose;
    std::int32_t color, key;
    ncclUniqueId id;
};

// What belongs to a rank.  All counters grow by one and wrap around.
struct alignas(64) Member {
    Who who;
    std::atomic<std::uint32_t> rung, sleepers;
    std::atomic<std::uint32_t> shown;       // steps of collectives that it has put into its slot
    Description description[2];
    std::atomic<std::uint32_t> told;        // notes that it has written
    Note note[2];
    std::atomic<std::uint32_t> left;        // it has finalized, or aborted
    std::atomic<std::uint64_t> sends_to;    // the ranks to which its host has connected, as bits
    std::atomic<std::uint64_t> receives_from;
};

// Messages from one rank to another, in parts: two fit.
struct alignas(64) Box {
    std::atomic<std::uint32_t> filled, emptied;
    std::uint64_t whole[2];  // bytes of the message
    std::uint64_t bytes[2];  // of this part
    char data[2][box_bytes];
};

class Segment {
public:
    // Make the memory for so many ranks; return a file descriptor, or -1.
    static int create(int size);
    // Map it, and close the descriptor; null where that fails.
    static std::shared_ptr<Segment> map(int descriptor, int size);
    ~Segment();
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;

    Member& member(int rank) const;
    // Where a rank shows the others data in a step of a collective; two steps fit.
    char* slot(int rank, std::uint32_t step) const;
    Box& box(int from, int to) const;

    // Wake all threads that sleep as this rank.
    void ring(int rank) const;
    void ring_all() const;
    // Sleep as a rank until it is rung, once more than `seen`, or for some milliseconds.
    void sleep(int rank, std::uint32_t seen) const;
    bool is_alive(int rank) const;

    const int size;

private:
    Segment(char* base, int ranks) : size(ranks), base_(base) {}

    char* base_;
};

// Tell when a process was started, in ticks since the boot; 0 where it is dead or a zombie.
std::uint64_t started(int process);

}  // namespace emulated_nccl
