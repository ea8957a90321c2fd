// The calls that put operations on streams, and what NCCL refuses of them.
#include "arithmetic.h"
#include "errors.h"
#include "group.h"
#include "jobs.h"
#include "settings.h"

#include "emulated.h"

#include <cstring>

namespace emulated_nccl {

namespace {

// A call as it was made.
struct Asked {
    const char* function;  // with "nccl" before it
    const void* from;
    void* to;
    std::size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;
    cudaStream_t stream;

    const char* name() const { return function + 4; }
};

constexpr int since_fp8 = 22403, fp8 = 10;

ncclResult_t check_numbers(const Asked& asked, const Communicator& comm) {
    if (asked.root < 0 || asked.root >= comm.size)
        return warn(ncclInvalidArgument, "%s : invalid root %d (root should be in the 0..%d range)",
                    asked.name(), asked.root, comm.size);
    const int type = asked.type, types = version() < since_fp8 ? fp8 : fp8 + 2;
    if (type < 0 || type >= types)
        return warn(ncclInvalidArgument, "%s : invalid type %d", asked.name(), type);
    const int op = asked.op;
    if (op < 0)
        return warn(ncclInvalidArgument, "%s : invalid reduction operation %d", asked.name(), op);
    if (op >= ncclNumOps)
        return warn(ncclInvalidArgument,
                    "%s : reduction operation %d unknown to this communicator", asked.name(), op);
    return ncclSuccess;
}

// NCCL does so with NCCL_CHECK_POINTERS=1; without, its kernel would read what is not there.
ncclResult_t check_memory(const Asked& asked, const Communicator& comm, const void* pointer,
                          std::size_t bytes, const char* what) {
    const int device = emulated_memory_device(pointer, bytes);
    if (device == comm.device) return ncclSuccess;
    if (device < 0)
        return warn(ncclInvalidArgument, "%s : %s %p is not a valid pointer", asked.name(), what,
                    pointer);
    return warn(ncclInvalidArgument,
                "%s : %s allocated on device %d mismatchs with NCCL device %d", asked.name(), what,
                device, comm.device);
}

ncclResult_t check_stream(const Asked& asked, const Communicator& comm) {
    const OnDevice device(comm.device);  // of which the default stream then is
    if (device.result) return device.result;
    if (emulated_stream_device(asked.stream) == comm.device) return ncclSuccess;
    return cuda_result(cudaErrorInvalidResourceHandle);
}

struct Copy {
    CommunicatorPtr comm;
    Operation operation;

    static void run(void* data) {
        const auto& [comm, operation] = *static_cast<Copy*>(data);
        suffer(operation.faults, comm->aborted);
        std::memmove(operation.to, operation.from, operation.bytes());
    }
    static void release(void* data) { delete static_cast<Copy*>(data); }
};

// With one rank an operation is a copy, or nothing at all, and waits for no end of a group.
ncclResult_t do_alone(const CommunicatorPtr& comm, Operation operation, cudaStream_t stream) {
    if (operation.from == operation.to && operation.faults.empty()) return ncclSuccess;
    const OnDevice device(comm->device);
    if (device.result) return device.result;
    auto* copy = new Copy{comm, std::move(operation)};
    return cuda_result(emulated_enqueue(stream, Copy::run, copy, Copy::release));
}

ncclResult_t add(Kind kind, const Asked& asked, const CommunicatorPtr& comm,
                 std::vector<Fault> faults) {
    const bool is_root = comm->rank == asked.root;
    const auto ranks = static_cast<std::size_t>(comm->size);
    const std::size_t bytes = asked.count * size_of(asked.type);
    const bool reads = kind != Kind::receive && (kind != Kind::broadcast || is_root);
    const bool writes = kind != Kind::send && (kind != Kind::reduce || is_root);
    const char* const from_name = is_message(kind) ? "buff" : "sendbuff";
    const char* const to_name = is_message(kind) ? "buff" : "recvbuff";
    if (bytes && reads) {
        const std::size_t all = kind == Kind::reduce_scatter ? ranks * bytes : bytes;
        if (const auto result = check_memory(asked, *comm, asked.from, all, from_name))
            return result;
    }
    if (bytes && writes) {
        const std::size_t all = kind == Kind::all_gather ? ranks * bytes : bytes;
        if (const auto result = check_memory(asked, *comm, asked.to, all, to_name)) return result;
    }
    if (!is_message(kind) && asked.count == 0) return ncclSuccess;
    if (is_reduction(kind) && asked.type >= fp8) return refuse("a reduction of fp8 numbers");
    Operation operation{kind, static_cast<const char*>(asked.from), static_cast<char*>(asked.to),
                        asked.count, asked.type, asked.op, asked.root, std::move(faults)};
    if (comm->size == 1 && !is_message(kind))
        return do_alone(comm, std::move(operation), asked.stream);
    return add_operation(comm, std::move(operation), asked.stream);
}

// Make one call: `then(comm, faults)` adds what it asks for to the group.
template <class Then>
ncclResult_t call(const Asked& asked, ncclComm_t handle, int since, Then then) {
    CommunicatorPtr comm;
    if (const ncclResult_t result = find(handle, asked.name(), comm)) return spoil(result);
    Call made(asked.function, comm->rank, since, &comm->aborted);
    if (made.result) return spoil(made.result);
    if (comm->revoked)
        return spoil(warn(ncclInvalidUsage, "%s: communicator was revoked", asked.name()));
    const ncclResult_t result = in_group([&] {
        if (const ncclResult_t result = ensure_ready(*comm)) return result;
        if (const ncclResult_t result = check_numbers(asked, *comm)) return result;
        if (const ncclResult_t result = check_stream(asked, *comm)) return result;
        info("%s: sendbuff %p recvbuff %p count %zu datatype %d op %d root %d comm %p [nranks=%d] "
             "stream %p",
             asked.name(), asked.from, asked.to, asked.count, asked.type, asked.op, asked.root,
             static_cast<void*>(handle), comm->size, static_cast<void*>(asked.stream));
        return then(comm, made.left);
    });
    for (const Fault& fault : made.left)
        if (fault.what == Fault::asynchronous) comm->remote = fault.code;
    if (comm->blocking) return result;
    if (result != ncclSuccess && result != ncclInProgress) comm->state = result;
    return asynchronous(*comm);
}

ncclResult_t call(Kind kind, const Asked& asked, ncclComm_t handle) {
    return call(asked, handle, 0, [&](const CommunicatorPtr& comm, std::vector<Fault> faults) {
        return add(kind, asked, comm, std::move(faults));
    });
}

// Add a message of a part, which lies behind as many others.
ncclResult_t add_part(Kind kind, Asked asked, const CommunicatorPtr& comm, int peer, int behind) {
    const std::size_t offset =
        static_cast<std::size_t>(behind) * asked.count * size_of(asked.type);
    asked.root = peer;
    if (kind == Kind::send) {
        asked.from = static_cast<const char*>(asked.from) + offset;
        asked.to = nullptr;
    } else {
        asked.from = nullptr;
        asked.to = static_cast<char*>(asked.to) + offset;
    }
    return add(kind, asked, comm, {});
}

}  // namespace

}  // namespace emulated_nccl

using namespace emulated_nccl;

extern "C" {

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return call(Kind::all_reduce, {__func__, from, to, count, type, op, 0, stream}, comm);
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
    return call(Kind::reduce, {__func__, from, to, count, type, op, root, stream}, comm);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    return call(Kind::broadcast, {__func__, from, to, count, type, ncclSum, root, stream}, comm);
}

ncclResult_t ncclBcast(void* data, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
    return ncclBroadcast(data, data, count, type, root, comm, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    return call(Kind::all_gather, {__func__, from, to, count, type, ncclSum, 0, stream}, comm);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return call(Kind::reduce_scatter, {__func__, from, to, count, type, op, 0, stream}, comm);
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
    return call(Kind::send, {__func__, from, nullptr, count, type, ncclSum, peer, stream}, comm);
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return call(Kind::receive, {__func__, nullptr, to, count, type, ncclSum, peer, stream}, comm);
}

// These three are messages in NCCL too.  With no elements they are nothing at all.
static constexpr int since_parts = 22803;

ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type,
                          ncclComm_t handle, cudaStream_t stream) {
    const Asked asked{__func__, from, to, count, type, ncclSum, 0, stream};
    return call(asked, handle, since_parts, [&](const CommunicatorPtr& comm, const auto&) {
        for (int peer = 0; count && peer < comm->size; ++peer) {
            for (const Kind kind : {Kind::send, Kind::receive})
                if (const auto result = add_part(kind, asked, comm, peer, peer)) return result;
        }
        return ncclSuccess;
    });
}

ncclResult_t ncclGather(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                        ncclComm_t handle, cudaStream_t stream) {
    const Asked asked{__func__, from, to, count, type, ncclSum, root, stream};
    return call(asked, handle, since_parts, [&](const CommunicatorPtr& comm, const auto&) {
        if (!count) return ncclSuccess;
        if (const auto result = add_part(Kind::send, asked, comm, root, 0)) return result;
        for (int peer = 0; root == comm->rank && peer < comm->size; ++peer)
            if (const auto result = add_part(Kind::receive, asked, comm, peer, peer)) return result;
        return ncclSuccess;
    });
}

ncclResult_t ncclScatter(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                         ncclComm_t handle, cudaStream_t stream) {
    const Asked asked{__func__, from, to, count, type, ncclSum, root, stream};
    return call(asked, handle, since_parts, [&](const CommunicatorPtr& comm, const auto&) {
        if (!count) return ncclSuccess;
        for (int peer = 0; root == comm->rank && peer < comm->size; ++peer)
            if (const auto result = add_part(Kind::send, asked, comm, peer, peer)) return result;
        return add_part(Kind::receive, asked, comm, root, 0);
    });
}

}
