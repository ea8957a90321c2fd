// Questions about communicators and the library.
#include "communicator.h"
#include "errors.h"
#include "faults.h"
#include "settings.h"

namespace emulated_nccl {

namespace {

// Find a communicator that is ready.
ncclResult_t find_ready(ncclComm_t handle, const char* name, const void* result, const char* what,
                        CommunicatorPtr& comm) {
    if (const ncclResult_t failed = find(handle, name, comm)) return failed;
    if (const ncclResult_t failed = check_pointer(result, name, what)) return failed;
    return ensure_ready(*comm);
}

}  // namespace

}  // namespace emulated_nccl

using namespace emulated_nccl;

extern "C" {

ncclResult_t ncclGetVersion(int* result) {
    const Call call(__func__, -1);
    if (call.result) return call.result;
    if (!result) return ncclInvalidArgument;
    *result = version();
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
    CommunicatorPtr comm;
    if (const auto failed = find_ready(handle, "CommCount", count, "count", comm)) return failed;
    *count = comm->size;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int* device) {
    CommunicatorPtr comm;
    if (const auto failed = find_ready(handle, "CommCuDevice", device, "devid", comm))
        return failed;
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
    CommunicatorPtr comm;
    if (const auto failed = find_ready(handle, "CommUserRank", rank, "rank", comm)) return failed;
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* result) {
    CommunicatorPtr comm;
    if (const auto failed = find(handle, "ncclGetAsyncError", comm)) return failed;
    if (const auto failed = check_pointer(result, "ncclGetAsyncError", "asyncError")) return failed;
    const Call call(__func__, comm->rank, 0, &comm->aborted);
    if (call.result) return call.result;
    for (const Fault& fault : call.left)
        if (fault.what == Fault::asynchronous) comm->remote = fault.code;
    *result = asynchronous(*comm);
    return ncclSuccess;
}

}
