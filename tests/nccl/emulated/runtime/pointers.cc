// Whose memory a pointer points to.
//
// Rules from "CUDA Runtime API" and "CUDA Driver API", Unified Addressing.
#include "blocks.h"
#include "device.h"

#include <cstdio>

namespace emulated {
namespace {

// Kernels of the calling thread's device may touch it.
bool is_touchable(const Block& block) {
    return block.kind != Memory::device || may_touch(current_device(), block.device);
}

cudaMemoryType type_of(const Block& block) {
    if (block.kind == Memory::device) return cudaMemoryTypeDevice;
    return block.kind == Memory::managed ? cudaMemoryTypeManaged : cudaMemoryTypeHost;
}

template <class Value>
cudaError_t answer(void* where, Value value) {
    *static_cast<Value*>(where) = value;
    return cudaSuccess;
}

cudaError_t driver_attribute(void* where, CUpointer_attribute id, const Block& block,
                             CUdeviceptr pointer) {
    const bool on_host = block.kind != Memory::device;
    switch (id) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return answer<unsigned>(where, on_host && block.kind != Memory::managed
                                               ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            if (!is_touchable(block)) return cudaErrorInvalidValue;
            return answer<CUdeviceptr>(where, pointer);
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (!on_host) return cudaErrorInvalidValue;
            return answer<void*>(where, reinterpret_cast<void*>(pointer));
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            return answer<bool>(where, block.kind == Memory::managed);
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            return answer<int>(where, block.device);
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return answer<CUdeviceptr>(where, block.begin);
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            return answer<std::size_t>(where, block.size);
        case CU_POINTER_ATTRIBUTE_MAPPED:
            return answer<bool>(where, true);
        default:
            std::fprintf(stderr, "emulated: cuPointerGetAttribute is not emulated for %d\n",
                         static_cast<int>(id));
            return cudaErrorNotSupported;
    }
}

}  // namespace
}  // namespace emulated

using namespace emulated;

extern "C" {

int emulated_memory_device(const void* pointer, std::size_t bytes) {
    Block block;
    return is_on_device(pointer, bytes) && find(pointer, bytes, block) ? block.device : -1;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    return call(__func__, [&]() -> cudaError_t {
        if (!attributes) return cudaErrorInvalidValue;
        *attributes = cudaPointerAttributes();
        void* const where = const_cast<void*>(pointer);
        Block block;
        if (!find(pointer, 1, block)) {
            attributes->type = cudaMemoryTypeUnregistered;
            attributes->device = cudaInvalidDeviceId;
            attributes->hostPointer = where;
            return cudaSuccess;
        }
        attributes->type = type_of(block);
        attributes->device = block.device;
        attributes->devicePointer = is_touchable(block) ? where : nullptr;
        attributes->hostPointer = block.kind == Memory::device ? nullptr : where;
        return cudaSuccess;
    });
}

CUresult cuPointerGetAttribute(void* where, CUpointer_attribute id, CUdeviceptr pointer) {
    return driver_call(__func__, [&]() -> cudaError_t {
        Block block;
        const bool found = find(reinterpret_cast<const void*>(pointer), 1, block);
        if (!where || !found) return cudaErrorInvalidValue;
        return driver_attribute(where, id, block, pointer);
    });
}

CUresult cuMemGetAddressRange(CUdeviceptr* begin, std::size_t* size, CUdeviceptr pointer) {
    return driver_call(__func__, [&]() -> cudaError_t {
        Block block;
        const bool found = find(reinterpret_cast<const void*>(pointer), 1, block);
        if (!found || block.kind == Memory::registered) return cudaErrorSymbolNotFound;
        if (begin) *begin = block.begin;
        if (size) *size = block.size;
        return cudaSuccess;
    });
}

}
