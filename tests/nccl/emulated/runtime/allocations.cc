// Memory that programs allocate and free: of devices, managed, and pinned memory of the host.
//
// Rules from "CUDA Runtime API", Memory Management; that freeing waits for the device, from "CUDA
// Programming Guide", Stream Ordered Memory Allocator; that a capture forbids all of it, from
// Stream Capture, Prohibited and Unhandled Operations.
#include "blocks.h"

namespace emulated {
namespace {

cudaError_t allocate(void** memory, std::size_t size, Memory kind) {
    if (!memory) return cudaErrorInvalidValue;
    if (const cudaError_t error = unsafe_call()) return error;
    *memory = nullptr;
    return size ? map_block(memory, size, current_device(), kind) : cudaSuccess;
}

bool is_freed_by_cudaFree(Memory kind) {
    return kind == Memory::device || kind == Memory::managed;
}

}  // namespace
}  // namespace emulated

using namespace emulated;

extern "C" {

cudaError_t cudaMalloc(void** memory, std::size_t size) {
    return call(__func__, [&] { return allocate(memory, size, Memory::device); });
}

cudaError_t cudaMallocManaged(void** memory, std::size_t size, unsigned flags) {
    return call(__func__, [&]() -> cudaError_t {
        const bool is_known = flags == cudaMemAttachGlobal || flags == cudaMemAttachHost;
        if (!is_known || !size) return cudaErrorInvalidValue;
        return allocate(memory, size, Memory::managed);
    });
}

cudaError_t cudaFree(void* memory) {
    return call(__func__, [&]() -> cudaError_t {
        if (!memory) return cudaSuccess;
        if (const cudaError_t error = unsafe_call()) return error;
        Block block;
        if (!find_beginning(memory, block)) return cudaErrorInvalidValue;
        if (!is_freed_by_cudaFree(block.kind)) return cudaErrorInvalidValue;
        synchronize_device(block.device);
        leave_pool(memory);
        return remove_block(memory) ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* whole) {
    return call(__func__, [&]() -> cudaError_t {
        if (!available || !whole) return cudaErrorInvalidValue;
        *available = free_memory(current_device());
        *whole = memory_of_device();
        return cudaSuccess;
    });
}

cudaError_t cudaHostAlloc(void** memory, std::size_t size, unsigned flags) {
    return call(__func__, [&]() -> cudaError_t {
        const unsigned known =
            cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
        if (flags & ~known) return cudaErrorInvalidValue;
        return allocate(memory, size, Memory::pinned);
    });
}

cudaError_t cudaMallocHost(void** memory, std::size_t size) {
    return call(__func__, [&] { return allocate(memory, size, Memory::pinned); });
}

// Any device may be using pinned memory.
cudaError_t cudaFreeHost(void* memory) {
    return call(__func__, [&]() -> cudaError_t {
        if (!memory) return cudaSuccess;
        if (const cudaError_t error = unsafe_call()) return error;
        Block block;
        if (!find_beginning(memory, block)) return cudaErrorInvalidValue;
        if (block.kind != Memory::pinned) return cudaErrorInvalidValue;
        for (int device = 0; device < devices(); ++device) synchronize_device(device);
        return remove_block(memory) ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaHostRegister(void* memory, std::size_t size, unsigned flags) {
    return call(__func__, [&]() -> cudaError_t {
        if (!memory || !size) return cudaErrorInvalidValue;
        if (flags & cudaHostRegisterIoMemory) return cudaErrorNotSupported;
        if (const cudaError_t error = unsafe_call()) return error;
        return register_block(memory, size, current_device());
    });
}

cudaError_t cudaHostUnregister(void* memory) {
    return call(__func__, [&]() -> cudaError_t {
        if (!memory) return cudaErrorInvalidValue;
        if (const cudaError_t error = unsafe_call()) return error;
        Block block;
        const bool is = find_beginning(memory, block) && block.kind == Memory::registered;
        return is && remove_block(memory) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
    });
}

// Host and devices have one address for the same memory ("CUDA Programming Guide", Unified
// Virtual Address Space).
cudaError_t cudaHostGetDevicePointer(void** on_device, void* memory, unsigned flags) {
    return call(__func__, [&]() -> cudaError_t {
        Block block;
        if (!on_device || flags || !find(memory, 1, block)) return cudaErrorInvalidValue;
        if (is_freed_by_cudaFree(block.kind)) return cudaErrorInvalidValue;
        *on_device = memory;
        return cudaSuccess;
    });
}

}
