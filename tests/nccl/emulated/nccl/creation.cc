// The creation of communicators: by an id, of all devices of a process, and from others.
#include "config.h"
#include "errors.h"
#include "group.h"
#include "jobs.h"
#include "rendezvous.h"
#include "settings.h"

#include "emulated.h"

#include <algorithm>
#include <cstring>

namespace emulated_nccl {

namespace {

// What NCCL allocates on the device for itself, as tests of memory that runs out want it.
ncclResult_t allocate(Communicator& comm) {
    const auto bytes = static_cast<std::size_t>(seconds("EMULATED_NCCL_MEMORY") * (1 << 20));
    if (!bytes) return ncclSuccess;
    const OnDevice device(comm.device);
    return device.result ? device.result : cuda_result(cudaMalloc(&comm.memory, bytes));
}

ncclResult_t meet(Communicator& comm, const ncclUniqueId& id, int size, int rank) {
    if (const ncclResult_t result = allocate(comm)) return result;
    if (const ncclResult_t result = join(comm, id, size, rank)) return result;
    constexpr int since_lazy = 22203;
    comm.connected = version() < since_lazy || !parameter("NCCL_RUNTIME_CONNECT", 1);
    pause_for(seconds("EMULATED_NCCL_INIT"), &comm.aborted);
    info("comm %p rank %d nranks %d cudaDev %d - Init COMPLETE", static_cast<void*>(comm.handle),
         rank, size, comm.device);
    return ncclSuccess;
}

ncclResult_t create(ncclComm_t* made, int size, const ncclUniqueId& id, int rank, int device,
                    const ncclConfig_t* config) {
    if (const ncclResult_t result = cuda_result(cudaFree(nullptr))) return result;
    if (const ncclResult_t result = check_pointer(made, "CommInitRank", "newcomm")) return result;
    if (size < 1 || rank < 0 || rank >= size)
        return warn(ncclInvalidArgument, "Invalid rank requested : %d/%d", rank, size);
    if (size > most_ranks) return refuse("a communicator of more than 64 ranks");
    bool blocking = true;
    if (const ncclResult_t result = read_config(config, blocking)) return result;
    if (rank == 0) announce();
    const CommunicatorPtr comm = make_communicator(device, blocking);
    // It is there at once, so that another thread can abort it.
    *made = comm->handle;
    const auto run = [comm, id, size, rank] { return meet(*comm, id, size, rank); };
    return add_task({comm, run, false});
}

ncclResult_t create(const char* function, ncclComm_t* made, int size, const ncclUniqueId& id,
                    int rank, const ncclConfig_t* config, int since = 0) {
    if (made) *made = nullptr;
    const Call call(function, rank, since);
    if (call.result) return spoil(call.result);
    int device = 0;
    if (const ncclResult_t result = cuda_result(cudaGetDevice(&device))) return spoil(result);
    const ncclResult_t result =
        in_group([&] { return create(made, size, id, rank, device, config); });
    CommunicatorPtr comm;
    if (!made || !*made || find(*made, function + 4, comm) || comm->blocking) return result;
    if (result != ncclSuccess && result != ncclInProgress) comm->state = result;
    return asynchronous(*comm);
}

// The ranks of a new communicator, in order, as ranks of the one that is split.
std::vector<int> ranks_of(const std::vector<Note>& all, int color) {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < all.size(); ++rank)
        if (all[rank].color == color) ranks.push_back(static_cast<int>(rank));
    const auto key = [&](int rank) { return all[static_cast<std::size_t>(rank)].key; };
    std::stable_sort(ranks.begin(), ranks.end(),
                     [&](int one, int other) { return key(one) < key(other); });
    return ranks;
}

// Split a communicator: its ranks tell each other their colors, and those of one color meet as all
// ranks do, by an id that the first of them makes.
ncclResult_t split(Communicator& parent, int color, int key, const CommunicatorPtr& made) {
    std::vector<Note> all;
    if (!parent.tell({Note::split, color, key, {}}, all)) return ncclInternalError;
    const std::vector<int> ranks = ranks_of(all, color);
    Note identity{Note::identity, color, key, {}};
    if (made && ranks.front() == parent.rank)
        if (const ncclResult_t result = make_identity(identity.id)) return result;
    if (!parent.tell(identity, all)) return ncclInternalError;
    if (!made) return ncclSuccess;
    const auto own = std::find(ranks.begin(), ranks.end(), parent.rank) - ranks.begin();
    return meet(*made, all[static_cast<std::size_t>(ranks.front())].id,
                static_cast<int>(ranks.size()), static_cast<int>(own));
}

ncclResult_t split(const CommunicatorPtr& parent, int color, int key, ncclComm_t* made,
                   const ncclConfig_t* config) {
    if (const auto result = check_pointer(made, "ncclCommSplit", "newcomm")) return result;
    if (const ncclResult_t result = ensure_ready(*parent)) return result;
    *made = nullptr;
    CommunicatorPtr comm;
    if (color != NCCL_SPLIT_NOCOLOR) {
        bool blocking = true;
        if (const auto result = read_config(config, blocking, parent->blocking)) return result;
        comm = make_communicator(parent->device, blocking);
    }
    const auto run = [=] {
        const ncclResult_t result = split(*parent, color, key, comm);
        if (comm) *made = comm->handle;
        if (comm && !comm->blocking) comm->state = result;
        return result;
    };
    return add_task({parent, run, false});
}

ncclResult_t check_devices(const int* devices, int count, int there) {
    std::vector<int> uses(static_cast<std::size_t>(there));
    const bool shared = version() >= 23003 && parameter("NCCL_MULTI_RANK_GPU_ENABLE", 0);
    for (int at = 0; at < count; ++at) {
        if (devices[at] < 0 || devices[at] >= there)
            return warn(ncclInvalidArgument, "Invalid device %d (totalnDev=%d)", devices[at],
                        there);
        if (uses[static_cast<std::size_t>(devices[at])]++ && !shared) return ncclInvalidUsage;
    }
    return ncclSuccess;
}

}  // namespace

}  // namespace emulated_nccl

using namespace emulated_nccl;

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    const Call call("ncclGetUniqueId", -1);
    if (call.result) return call.result;
    if (const ncclResult_t result = check_pointer(id, "GetUniqueId", "out")) return result;
    return make_identity(*id);
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
    return create(__func__, comm, size, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
    return create(__func__, comm, size, id, rank, config);
}

// The ranks meet by the first id; the others would only make that faster.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int ids,
                                      ncclUniqueId* id, ncclConfig_t* config) {
    if (ids <= 0 || ids > size)
        return spoil(warn(ncclInvalidArgument,
                          "improper usage of ncclCommInitRank: nId = %d, nranks=%d", ids, size));
    return create(__func__, comm, size, id[0], rank, config, 22304);
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
    const Call call("ncclCommInitAll", -1);
    if (call.result) return call.result;
    if (const auto result = check_pointer(comms, "CommInitAll", "comms")) return result;
    if (count < 0)
        return warn(ncclInvalidArgument, "Invalid device count requested : %d", count);
    int there = 0;
    if (const ncclResult_t result = cuda_result(cudaGetDeviceCount(&there))) return result;
    if (devices)
        if (const ncclResult_t result = check_devices(devices, count, there)) return result;
    ncclUniqueId id;
    if (const ncclResult_t result = make_identity(id)) return result;
    return in_group([&] {
        for (int rank = 0; rank < count; ++rank) {
            const int device = devices ? devices[rank] : rank;
            if (const auto result = create(&comms[rank], count, id, rank, device, nullptr))
                return result;
        }
        return ncclSuccess;
    });
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
    CommunicatorPtr comm;
    if (const ncclResult_t result = find(handle, __func__, comm)) return spoil(result);
    const Call call(__func__, comm->rank, 0, &comm->aborted);
    if (call.result) return spoil(call.result);
    const ncclResult_t result =
        in_group([&] { return split(comm, color, key, made, config); });
    return result == ncclInProgress ? ncclSuccess : result;
}

}
