// Memory that is allocated and freed in the order of a stream.
//
// Rules from "CUDA Runtime API", Stream Ordered Memory Allocator.  Freed memory goes back to the
// device at once, whatever a pool's release threshold is: what a pool has reserved is what is used.
// Allocations in a capture are not emulated.
#include "blocks.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <vector>

namespace emulated {
namespace {

struct Pool {
    int device;
    int reuse[3] = {1, 1, 1};    // cudaMemPoolReuse..., which change nothing here
    std::uint64_t threshold = 0, used = 0, most_used = 0;
};

constexpr int first_reuse = cudaMemPoolReuseFollowEventDependencies;

struct Owned {
    std::shared_ptr<Pool> pool;
    std::size_t size;
};

struct State {
    std::mutex mutex;
    std::vector<std::shared_ptr<Pool>> fresh, current;   // of each device
    std::map<cudaMemPool_t, std::shared_ptr<Pool>> pools;
    std::map<const void*, Owned> owned;

    State() {
        for (int device = 0; device < devices(); ++device) {
            fresh.push_back(std::make_shared<Pool>(Pool{device}));
            pools[handle_of(fresh.back())] = fresh.back();
        }
        current = fresh;
    }
    static cudaMemPool_t handle_of(const std::shared_ptr<Pool>& pool) {
        return reinterpret_cast<cudaMemPool_t>(pool.get());
    }
    std::shared_ptr<Pool> find(cudaMemPool_t handle) const {
        const auto found = pools.find(handle);
        return found == pools.end() ? nullptr : found->second;
    }
};

State& state() {
    static State& made = *new State;
    return made;
}

void charge(const void* memory, const std::shared_ptr<Pool>& pool, std::size_t size) {
    const std::lock_guard<std::mutex> hold(state().mutex);
    state().owned[memory] = {pool, size};
    pool->used += size;
    pool->most_used = std::max(pool->most_used, pool->used);
}

cudaError_t refuse_in_capture(const char* function) {
    std::fprintf(stderr, "emulated: %s in a capture is not emulated\n", function);
    return cudaErrorNotSupported;
}

cudaError_t allocate(const char* function, void** memory, std::size_t size,
                     const std::shared_ptr<Pool>& pool, cudaStream_t stream) {
    if (is_captured(stream)) return refuse_in_capture(function);
    *memory = nullptr;
    if (!size) return cudaSuccess;
    cudaError_t error = map_block(memory, size, pool->device, Memory::device);
    if (error == cudaErrorMemoryAllocation) {
        // What the stream frees before this may be enough.
        if (const cudaError_t failed = synchronize(stream)) return failed;
        error = map_block(memory, size, pool->device, Memory::device);
    }
    if (!error) charge(*memory, pool, size);
    return error;
}

template <class Body>
cudaError_t with_pool(const char* function, cudaMemPool_t handle, const void* value, Body body) {
    return call(function, [&]() -> cudaError_t {
        if (!value) return cudaErrorInvalidValue;
        const std::lock_guard<std::mutex> hold(state().mutex);
        const std::shared_ptr<Pool> pool = state().find(handle);
        return pool ? body(*pool) : cudaErrorInvalidValue;
    });
}

cudaError_t get(const Pool& pool, cudaMemPoolAttr id, void* value) {
    auto* word = static_cast<std::uint64_t*>(value);
    switch (id) {
        case cudaMemPoolReuseFollowEventDependencies:
        case cudaMemPoolReuseAllowOpportunistic:
        case cudaMemPoolReuseAllowInternalDependencies:
            *static_cast<int*>(value) = pool.reuse[id - first_reuse];
            break;
        case cudaMemPoolAttrReleaseThreshold: *word = pool.threshold; break;
        case cudaMemPoolAttrReservedMemCurrent:
        case cudaMemPoolAttrUsedMemCurrent: *word = pool.used; break;
        case cudaMemPoolAttrReservedMemHigh:
        case cudaMemPoolAttrUsedMemHigh: *word = pool.most_used; break;
        default: return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

cudaError_t set(Pool& pool, cudaMemPoolAttr id, const void* value) {
    const auto word = static_cast<const std::uint64_t*>(value);
    switch (id) {
        case cudaMemPoolReuseFollowEventDependencies:
        case cudaMemPoolReuseAllowOpportunistic:
        case cudaMemPoolReuseAllowInternalDependencies:
            pool.reuse[id - first_reuse] = *static_cast<const int*>(value);
            return cudaSuccess;
        case cudaMemPoolAttrReleaseThreshold: pool.threshold = *word; return cudaSuccess;
        case cudaMemPoolAttrReservedMemHigh:
        case cudaMemPoolAttrUsedMemHigh:
            if (*word) return cudaErrorInvalidValue;  // they can be reset alone
            pool.most_used = pool.used;
            return cudaSuccess;
        default: return cudaErrorInvalidValue;
    }
}

template <class Body>
cudaError_t of_device(const char* function, int device, Body body) {
    return call(function, [&]() -> cudaError_t {
        if (!is_device(device)) return cudaErrorInvalidDevice;
        const std::lock_guard<std::mutex> hold(state().mutex);
        return body(static_cast<std::size_t>(device));
    });
}

}  // namespace

void leave_pool(const void* memory) {
    const std::lock_guard<std::mutex> hold(state().mutex);
    const auto found = state().owned.find(memory);
    if (found == state().owned.end()) return;
    found->second.pool->used -= found->second.size;
    state().owned.erase(found);
}

}  // namespace emulated

using namespace emulated;

extern "C" {

cudaError_t cudaMallocAsync(void** memory, std::size_t size, cudaStream_t stream) {
    return call(__func__, [&]() -> cudaError_t {
        const int device = device_of(stream);
        if (!memory) return cudaErrorInvalidValue;
        if (device < 0) return cudaErrorInvalidResourceHandle;
        std::shared_ptr<Pool> pool;
        {
            const std::lock_guard<std::mutex> hold(state().mutex);
            pool = state().current[static_cast<std::size_t>(device)];
        }
        return allocate("cudaMallocAsync", memory, size, pool, stream);
    });
}

cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t size, cudaMemPool_t handle,
                                    cudaStream_t stream) {
    return call(__func__, [&]() -> cudaError_t {
        if (!memory) return cudaErrorInvalidValue;
        if (device_of(stream) < 0) return cudaErrorInvalidResourceHandle;
        std::shared_ptr<Pool> pool;
        {
            const std::lock_guard<std::mutex> hold(state().mutex);
            pool = state().find(handle);
        }
        if (!pool) return cudaErrorInvalidValue;
        return allocate("cudaMallocFromPoolAsync", memory, size, pool, stream);
    });
}

// Memory is refused to later calls at once, and unmapped when the stream comes to it.
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
    return call(__func__, [&]() -> cudaError_t {
        if (!memory) return cudaErrorInvalidValue;
        if (device_of(stream) < 0) return cudaErrorInvalidResourceHandle;
        if (is_captured(stream)) return refuse_in_capture("cudaFreeAsync");
        Block block;
        const bool found = find_beginning(memory, block) && block.kind == Memory::device;
        if (!found || !retire_block(memory)) return cudaErrorInvalidValue;
        return enqueue(stream, [memory] {
            leave_pool(memory);
            remove_block(memory);
        });
    });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
    return of_device(__func__, device, [&](std::size_t index) -> cudaError_t {
        if (!pool) return cudaErrorInvalidValue;
        *pool = State::handle_of(state().fresh[index]);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
    return of_device(__func__, device, [&](std::size_t index) -> cudaError_t {
        if (!pool) return cudaErrorInvalidValue;
        *pool = State::handle_of(state().current[index]);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t handle) {
    return of_device(__func__, device, [&](std::size_t index) -> cudaError_t {
        const std::shared_ptr<Pool> pool = state().find(handle);
        if (!pool || pool->device != device) return cudaErrorInvalidValue;
        state().current[index] = pool;
        return cudaSuccess;
    });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* handle, const cudaMemPoolProps* properties) {
    return call(__func__, [&]() -> cudaError_t {
        if (!handle || !properties) return cudaErrorInvalidValue;
        const bool is_plain = properties->allocType == cudaMemAllocationTypePinned
                              && properties->location.type == cudaMemLocationTypeDevice;
        if (!is_plain) return cudaErrorInvalidValue;
        if (properties->handleTypes != cudaMemHandleTypeNone) return cudaErrorNotSupported;
        if (!is_device(properties->location.id)) return cudaErrorInvalidDevice;
        const auto pool = std::make_shared<Pool>(Pool{properties->location.id});
        *handle = State::handle_of(pool);
        const std::lock_guard<std::mutex> hold(state().mutex);
        state().pools[*handle] = pool;
        return cudaSuccess;
    });
}

// Memory that is still used keeps its pool; the device goes back to its default one.
cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
    return with_pool(__func__, handle, handle, [&](const Pool& pool) -> cudaError_t {
        const auto index = static_cast<std::size_t>(pool.device);
        if (state().fresh[index].get() == &pool) return cudaErrorInvalidValue;
        if (state().current[index].get() == &pool) state().current[index] = state().fresh[index];
        state().pools.erase(handle);
        return cudaSuccess;
    });
}

// Nothing is kept that could be given back.
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, std::size_t) {
    return with_pool(__func__, handle, handle, [](const Pool&) { return cudaSuccess; });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr id, void* value) {
    return with_pool(__func__, handle, value,
                     [&](const Pool& pool) { return get(pool, id, value); });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr id, void* value) {
    return with_pool(__func__, handle, value,
                     [&](Pool& pool) { return set(pool, id, value); });
}

}
