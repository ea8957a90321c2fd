// Communicators, their handles, and how one waits for its peers.
#pragma once

#include "segment.h"

#include <nccl.h>

#include <condition_variable>
#include <mutex>
#include <set>
#include <vector>

namespace emulated_nccl {

struct Communicator : std::enable_shared_from_this<Communicator> {
    ncclComm_t handle = nullptr;
    int device = 0;
    bool blocking = true;

    // Set when the ranks have met.
    int rank = 0, size = 0;
    std::shared_ptr<Segment> segment;

    std::atomic<bool> aborted{false};  // all waits end
    std::atomic<bool> revoked{false};
    bool finalized = false;
    bool connected = false;  // all ranks, for collectives
    // What ncclCommGetAsyncError tells: of calls in the background, and then of peers.
    std::atomic<ncclResult_t> state{ncclSuccess}, remote{ncclSuccess};

    // Jobs and calls, guarded by the mutex; `changed` tells of each change.
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t called = 0, done = 0;  // jobs that are not captured; they run in this order
    long jobs = 0, captured_jobs = 0;
    long users = 0;                    // calls of this thread or others that use it
    bool is_running = false;           // a job of this communicator
    std::uint32_t step = 0;            // of collectives; of the running job alone

    // In a capture: its number, and what is recorded behind the last operation.
    unsigned long long capture = 0;
    cudaEvent_t captured = nullptr;

    void* memory = nullptr;            // on the device: EMULATED_NCCL_MEMORY
    std::set<void*> registered;        // handles of buffers and windows

    // Wait until `ready()`, which what peers do changes; false when aborted meanwhile.
    template <class Ready>
    bool wait(Ready ready);
    // Tell all ranks something, and hear what they tell; false when aborted meanwhile.
    bool tell(const Note& mine, std::vector<Note>& all);
    // Let all waits of this rank end, for good or until it has been revoked.
    void stop();
    // The ranks have met; or have not, where `shared` is null.
    void begin(const std::shared_ptr<Segment>& shared, int own_rank);
    bool is_made();
    Member& own() const { return segment->member(rank); }

private:
    void look_for_dead();
    std::atomic<std::int64_t> looked_{0};  // when, in milliseconds
};

using CommunicatorPtr = std::shared_ptr<Communicator>;

// Make one with a handle that is never used again.
CommunicatorPtr make_communicator(int device, bool blocking);
// Let nobody find it any more; false where it was forgotten before.
bool forget(const CommunicatorPtr& comm);
// Find the communicator of a handle, or refuse it by the name of the call.
ncclResult_t find(ncclComm_t handle, const char* name, CommunicatorPtr& found);
// Refuse a null pointer.
ncclResult_t check_pointer(const void* pointer, const char* name, const char* what);
// Refuse a communicator that is busy in the background, or that has failed.
ncclResult_t check_state(const Communicator& comm);
// Refuse one whose ranks have not met, too.
ncclResult_t ensure_ready(const Communicator& comm);
// Return what ncclCommGetAsyncError tells.
ncclResult_t asynchronous(const Communicator& comm);

template <class Ready>
bool Communicator::wait(Ready ready) {
    for (;;) {
        const std::uint32_t seen = own().rung.load();
        if (ready()) return true;
        if (aborted) return false;
        segment->sleep(rank, seen);
        look_for_dead();
    }
}

}  // namespace emulated_nccl
