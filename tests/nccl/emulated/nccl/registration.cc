// Memory and buffers that are registered with a communicator: NCCL is faster with them, and does
// the same.
#include "errors.h"
#include "group.h"
#include "settings.h"

#include "emulated.h"

namespace emulated_nccl {

namespace {

constexpr int since_registration = 21901, since_windows = 22703;

// Find the communicator of a call that some versions do not have.
ncclResult_t begin(const char* function, ncclComm_t handle, int since, CommunicatorPtr& comm) {
    if (const ncclResult_t result = find(handle, function, comm)) return result;
    return Call(function, comm->rank, since, &comm->aborted).result;
}

void* add_handle(Communicator& comm) {
    static std::atomic<std::uintptr_t> next{1};
    void* handle = reinterpret_cast<void*>(next++);
    comm.registered.insert(handle);
    return handle;
}

// Windows are made by all ranks together.
ncclResult_t make_window(Communicator& comm, ncclWindow_t* window) {
    std::vector<Note> all;
    if (!comm.tell({Note::window, 0, 0, {}}, all)) return ncclInternalError;
    *window = static_cast<ncclWindow_t>(add_handle(comm));
    return ncclSuccess;
}

}  // namespace

}  // namespace emulated_nccl

using namespace emulated_nccl;

extern "C" {

ncclResult_t ncclMemAlloc(void** memory, size_t size) {
    const Call call(__func__, -1, since_registration);
    return call.result ? call.result : cuda_result(cudaMalloc(memory, size));
}

ncclResult_t ncclMemFree(void* memory) {
    const Call call(__func__, -1, since_registration);
    return call.result ? call.result : cuda_result(cudaFree(memory));
}

ncclResult_t ncclCommRegister(const ncclComm_t handle, void* memory, size_t size, void** made) {
    CommunicatorPtr comm;
    if (const auto result = begin(__func__, handle, since_registration, comm)) return result;
    if (emulated_memory_device(memory, size) != comm->device)
        return warn(ncclInvalidArgument, "ncclCommRegister : %p is not a valid pointer", memory);
    *made = add_handle(*comm);
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t handle, void* registered) {
    CommunicatorPtr comm;
    if (const auto result = begin(__func__, handle, since_registration, comm)) return result;
    if (!registered || comm->registered.erase(registered)) return ncclSuccess;
    return warn(ncclInvalidUsage, "Deregister: Could not find handle");
}

ncclResult_t ncclCommWindowRegister(ncclComm_t handle, void* memory, size_t size,
                                    ncclWindow_t* window, int) {
    CommunicatorPtr comm;
    if (const auto result = begin(__func__, handle, since_windows, comm)) return spoil(result);
    if (const auto result = check_pointer(window, __func__, "win")) return spoil(result);
    *window = nullptr;
    if (!memory || !size || emulated_memory_device(memory, size) != comm->device)
        return spoil(warn(ncclInvalidArgument, "invalid pointer %p / size %zu", memory, size));
    return in_group([&] {
        if (const ncclResult_t result = ensure_ready(*comm)) return result;
        return add_task({comm, [=] { return make_window(*comm, window); }, false});
    });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t handle, ncclWindow_t window) {
    CommunicatorPtr comm;
    if (const auto result = begin(__func__, handle, since_windows, comm)) return result;
    if (!window || comm->registered.erase(window)) return ncclSuccess;
    return warn(ncclInvalidUsage, "Deregister: Could not find handle");
}

}
