// The ends of communicators.
#include "errors.h"
#include "group.h"
#include "jobs.h"
#include "settings.h"

#include <chrono>

namespace emulated_nccl {

namespace {

void leave(Communicator& comm) {
    comm.own().left = 1;
    comm.segment->ring_all();
}

// "This function is an intra-node collective call, which all ranks on the same node should call to
// avoid a hang" (user guide, ncclCommDestroy).  A process that is dead has closed what it had.
void wait_for_peers(Communicator& comm) {
    leave(comm);
    for (int peer = 0; peer < comm.size; ++peer) {
        const Member& other = comm.segment->member(peer);
        if (other.who.host != comm.own().who.host) continue;
        comm.wait([&] { return other.left != 0 || !comm.segment->is_alive(peer); });
    }
}

ncclResult_t finalize(Communicator& comm) {
    wait_for_jobs(comm);
    wait_for_graphs(comm);
    wait_for_peers(comm);
    return ncclSuccess;
}

ncclResult_t free(const CommunicatorPtr& comm) {
    if (!forget(comm)) return ncclSuccess;
    if (comm->captured) cudaEventDestroy(comm->captured);
    if (!comm->memory) return ncclSuccess;
    const OnDevice device(comm->device);
    return device.result ? device.result : cuda_result(cudaFree(comm->memory));
}

void wait_for_users(Communicator& comm) {
    std::unique_lock<std::mutex> lock(comm.mutex);
    comm.changed.wait(lock, [&] { return comm.users == 0; });
}

// A communicator that was never made has no peers.
ncclResult_t destroy(const CommunicatorPtr& comm) {
    if (comm->is_made() && !comm->finalized) finalize(*comm);
    return free(comm);
}

ncclResult_t abort(const CommunicatorPtr& comm) {
    const auto begun = std::chrono::steady_clock::now();
    comm->stop();
    wait_for_users(*comm);
    wait_for_jobs(*comm);
    wait_for_graphs(*comm);
    if (comm->is_made()) leave(*comm);
    const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - begun;
    pause_for(seconds("EMULATED_NCCL_ABORT") - gone.count(), nullptr);
    return free(comm);
}

ncclResult_t revoke(const CommunicatorPtr& comm) {
    wait_for_jobs(*comm);
    comm->aborted = false;
    return ncclSuccess;
}

}  // namespace

}  // namespace emulated_nccl

using namespace emulated_nccl;

extern "C" {

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
    if (!handle) return ncclSuccess;
    CommunicatorPtr comm;
    if (const ncclResult_t result = find(handle, "CommFinalize", comm)) return spoil(result);
    const Call call(__func__, comm->rank, 0, &comm->aborted);
    if (call.result) return spoil(call.result);
    const ncclResult_t result = in_group([&] {
        if (const ncclResult_t result = ensure_ready(*comm)) return result;
        if (comm->finalized)
            return warn(ncclInvalidArgument, "CommFinalize : comm was finalized before");
        comm->finalized = true;
        return add_task({comm, [comm] { return finalize(*comm); }, false});
    });
    if (comm->blocking) return result;
    if (result != ncclSuccess && result != ncclInProgress) comm->state = result;
    return asynchronous(*comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
    if (!handle) return ncclSuccess;
    CommunicatorPtr comm;
    if (const ncclResult_t result = find(handle, "CommDestroy", comm)) return spoil(result);
    const Call call(__func__, comm->rank, 0, &comm->aborted);
    if (call.result) return spoil(call.result);
    return in_group([&] {
        if (const ncclResult_t result = check_state(*comm)) return result;
        return add_task({comm, [comm] { return destroy(comm); }, true});
    });
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
    if (!handle) return ncclSuccess;
    CommunicatorPtr comm;
    if (const ncclResult_t result = find(handle, "CommAbort", comm)) return spoil(result);
    const Call call(__func__, comm->rank);
    if (call.result) return spoil(call.result);
    // At once, though the rest may wait for the end of a group.
    comm->stop();
    return in_group([&] { return add_task({comm, [comm] { return abort(comm); }, true}); });
}

ncclResult_t ncclCommRevoke(ncclComm_t handle, int flags) {
    if (!handle) return ncclSuccess;
    CommunicatorPtr comm;
    if (const ncclResult_t result = find(handle, "CommRevoke", comm)) return spoil(result);
    const Call call(__func__, comm->rank, 22807);
    if (call.result) return spoil(call.result);
    if (flags != 0 || comm->finalized || comm->revoked) return ncclInvalidArgument;
    comm->revoked = comm->finalized = true;
    comm->stop();
    wait_for_users(*comm);
    const ncclResult_t result =
        in_group([&] { return add_task({comm, [comm] { return revoke(comm); }, false}); });
    return comm->blocking ? result : asynchronous(*comm);
}

}
