#include "communicator.h"

#include "errors.h"
#include "settings.h"

#include <chrono>
#include <map>

namespace emulated_nccl {

namespace {

// Handles are numbers of which none is the address of anything.
constexpr std::uintptr_t first_handle = 0x0ecc'0000'0000'0000, between_handles = 16;

constexpr std::int64_t between_looks = 50;  // milliseconds

std::int64_t milliseconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

struct Handles {
    std::mutex mutex;
    std::map<ncclComm_t, CommunicatorPtr> live;
    std::uintptr_t next = first_handle;
};

Handles& handles() {
    static Handles& made = *new Handles;
    return made;
}

ncclResult_t refuse_busy() {
    return warn(ncclInvalidArgument,
                "Attempt to use communicator before the previous operation returned ncclSuccess");
}

bool was_handle(ncclComm_t handle) {
    const auto number = reinterpret_cast<std::uintptr_t>(handle);
    return number >= first_handle && number < handles().next && number % between_handles == 0;
}

}  // namespace

CommunicatorPtr make_communicator(int device, bool blocking) {
    const auto made = std::make_shared<Communicator>();
    made->device = device;
    made->blocking = blocking;
    const std::lock_guard<std::mutex> guard(handles().mutex);
    made->handle = reinterpret_cast<ncclComm_t>(handles().next);
    handles().next += between_handles;
    handles().live[made->handle] = made;
    return made;
}

bool forget(const CommunicatorPtr& comm) {
    const std::lock_guard<std::mutex> guard(handles().mutex);
    return handles().live.erase(comm->handle) == 1;
}

ncclResult_t find(ncclComm_t handle, const char* name, CommunicatorPtr& found) {
    if (const ncclResult_t result = check_pointer(handle, name, "comm")) return result;
    const std::lock_guard<std::mutex> guard(handles().mutex);
    const auto there = handles().live.find(handle);
    if (there != handles().live.end()) {
        found = there->second;
        return ncclSuccess;
    }
    void* number = handle;
    if (was_handle(handle)) {
        complain("%s : comm %p has already been destroyed", name, number);
        return warn(ncclInvalidArgument, "%s : comm %p has already been destroyed", name, number);
    }
    return warn(ncclInvalidArgument, "Error: corrupted comm object detected");
}

ncclResult_t check_pointer(const void* pointer, const char* name, const char* what) {
    if (pointer) return ncclSuccess;
    return warn(ncclInvalidArgument, "%s : %s argument is NULL", name, what);
}

ncclResult_t check_state(const Communicator& comm) {
    if (comm.aborted) return ncclSuccess;
    const ncclResult_t state = asynchronous(comm);
    return state == ncclInProgress ? refuse_busy() : state;
}

ncclResult_t ensure_ready(const Communicator& comm) {
    if (const ncclResult_t result = check_state(comm)) return result;
    return comm.segment ? ncclSuccess : refuse_busy();
}

ncclResult_t asynchronous(const Communicator& comm) {
    const ncclResult_t state = comm.state;
    return state == ncclSuccess ? comm.remote.load() : state;
}

bool Communicator::tell(const Note& mine, std::vector<Note>& all) {
    const std::uint32_t round = own().told;
    own().note[round % 2] = mine;
    own().told = round + 1;
    segment->ring_all();
    all.resize(static_cast<std::size_t>(size));
    for (int peer = 0; peer < size; ++peer) {
        const Member& other = segment->member(peer);
        const auto has_told = [&] { return std::int32_t(other.told - round) > 0; };
        // Ranks in different calls wait for each other for ever, as in NCCL's bootstrap.
        if (!wait([&] { return has_told() && other.note[round % 2].purpose == mine.purpose; }))
            return false;
        all[static_cast<std::size_t>(peer)] = other.note[round % 2];
    }
    return true;
}

void Communicator::stop() {
    aborted = true;
    const std::lock_guard<std::mutex> guard(mutex);
    if (segment) segment->ring(rank);
    changed.notify_all();
}

void Communicator::begin(const std::shared_ptr<Segment>& shared, int own_rank) {
    const std::lock_guard<std::mutex> guard(mutex);
    rank = own_rank;
    size = shared ? shared->size : 0;
    segment = shared;
}

bool Communicator::is_made() {
    const std::lock_guard<std::mutex> guard(mutex);
    return segment != nullptr;
}

// NCCL notices a dead process by its socket, and so only where it speaks to it by sockets: where
// both are not on one host.
void Communicator::look_for_dead() {
    const std::int64_t now = milliseconds();
    if (now < looked_ + between_looks) return;
    looked_ = now;
    for (int peer = 0; peer < size && remote == ncclSuccess; ++peer) {
        if (segment->member(peer).who.host == own().who.host || segment->is_alive(peer)) continue;
        remote = warn(ncclRemoteError, "socketProgress: Connection closed by remote peer, rank %d",
                      peer);
    }
}

}  // namespace emulated_nccl
