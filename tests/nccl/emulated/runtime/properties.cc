// What a device says of itself.
//
// It is of compute capability 9.0: the limits of such a device are those of "CUDA Programming
// Guide", Compute Capabilities, Technical Specifications.  What is not emulated (textures,
// surfaces, cooperative launches, clusters, IPC) is 0, and so are its clocks: it has none.
#include "blocks.h"
#include "device.h"
#include "modules.h"

#include <climits>
#include <cstdio>
#include <cstring>

namespace emulated {
namespace {

struct Attribute {
    cudaDeviceAttr id;
    int value;
};

constexpr Attribute attributes[] = {
    {cudaDevAttrMaxThreadsPerBlock, most_threads},
    {cudaDevAttrMaxBlockDimX, most_block[0]},
    {cudaDevAttrMaxBlockDimY, most_block[1]},
    {cudaDevAttrMaxBlockDimZ, most_block[2]},
    {cudaDevAttrMaxGridDimX, most_grid[0]},
    {cudaDevAttrMaxGridDimY, most_grid[1]},
    {cudaDevAttrMaxGridDimZ, most_grid[2]},
    {cudaDevAttrMaxSharedMemoryPerBlock, most_shared},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, most_shared_on_request},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, shared_of_multiprocessor},
    {cudaDevAttrReservedSharedMemoryPerBlock, 1024},
    {cudaDevAttrTotalConstantMemory, 65536},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrMaxPitch, INT_MAX},
    {cudaDevAttrMaxRegistersPerBlock, 65536},
    {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
    {cudaDevAttrTextureAlignment, 512},
    {cudaDevAttrTexturePitchAlignment, 32},
    {cudaDevAttrSurfaceAlignment, 512},
    {cudaDevAttrGpuOverlap, 1},
    {cudaDevAttrAsyncEngineCount, 3},
    {cudaDevAttrMultiProcessorCount, multiprocessors},
    {cudaDevAttrMaxThreadsPerMultiProcessor, threads_of_multiprocessor},
    {cudaDevAttrMaxBlocksPerMultiprocessor, blocks_of_multiprocessor},
    {cudaDevAttrL2CacheSize, 50 << 20},
    {cudaDevAttrGlobalMemoryBusWidth, 5120},
    {cudaDevAttrSingleToDoublePrecisionPerfRatio, 2},
    {cudaDevAttrComputeCapabilityMajor, 9},
    {cudaDevAttrComputeCapabilityMinor, 0},
    {cudaDevAttrPciDomainId, pci_domain},
    {cudaDevAttrPciDeviceId, pci_slot},
    {cudaDevAttrCanMapHostMemory, 1},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrStreamPrioritiesSupported, 1},
    {cudaDevAttrGlobalL1CacheSupported, 1},
    {cudaDevAttrLocalL1CacheSupported, 1},
    {cudaDevAttrManagedMemory, 1},
    {cudaDevAttrConcurrentManagedAccess, 1},
    {cudaDevAttrComputePreemptionSupported, 1},
    {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
    {cudaDevAttrHostRegisterSupported, 1},
    {cudaDevAttrMemoryPoolsSupported, 1},
};

constexpr int last_attribute = 143;  // the same in the headers of CUDA 12.9 and 13.0

// An attribute that every device has, as an integer.
int of(cudaDeviceAttr id) {
    int value = 0;
    attribute(id, 0, value);
    return value;
}

void fill(cudaDeviceProp& p, int device) {
    std::memset(&p, 0, sizeof p);
    std::snprintf(p.name, sizeof p.name, "emulated device (no GPU)");
    p.uuid = uuid(device);
    p.totalGlobalMem = memory_of_device();
    p.sharedMemPerBlock = most_shared;
    p.sharedMemPerBlockOptin = most_shared_on_request;
    p.sharedMemPerMultiprocessor = shared_of_multiprocessor;
    p.reservedSharedMemPerBlock = of(cudaDevAttrReservedSharedMemoryPerBlock);
    p.regsPerBlock = of(cudaDevAttrMaxRegistersPerBlock);
    p.regsPerMultiprocessor = of(cudaDevAttrMaxRegistersPerMultiprocessor);
    p.warpSize = of(cudaDevAttrWarpSize);
    p.memPitch = of(cudaDevAttrMaxPitch);
    p.maxThreadsPerBlock = most_threads;
    for (int axis = 0; axis < 3; ++axis) {
        p.maxThreadsDim[axis] = most_block[axis];
        p.maxGridSize[axis] = most_grid[axis];
    }
    p.totalConstMem = of(cudaDevAttrTotalConstantMemory);
    p.major = of(cudaDevAttrComputeCapabilityMajor);
    p.minor = of(cudaDevAttrComputeCapabilityMinor);
    p.textureAlignment = of(cudaDevAttrTextureAlignment);
    p.texturePitchAlignment = of(cudaDevAttrTexturePitchAlignment);
    p.surfaceAlignment = of(cudaDevAttrSurfaceAlignment);
    p.multiProcessorCount = multiprocessors;
    p.maxThreadsPerMultiProcessor = threads_of_multiprocessor;
    p.maxBlocksPerMultiProcessor = blocks_of_multiprocessor;
    p.canMapHostMemory = of(cudaDevAttrCanMapHostMemory);
    p.concurrentKernels = of(cudaDevAttrConcurrentKernels);
    p.pciBusID = pci_bus(device);
    p.pciDeviceID = pci_slot;
    p.pciDomainID = pci_domain;
    p.asyncEngineCount = of(cudaDevAttrAsyncEngineCount);
    p.unifiedAddressing = of(cudaDevAttrUnifiedAddressing);
    p.memoryBusWidth = of(cudaDevAttrGlobalMemoryBusWidth);
    p.l2CacheSize = of(cudaDevAttrL2CacheSize);
    p.streamPrioritiesSupported = of(cudaDevAttrStreamPrioritiesSupported);
    p.globalL1CacheSupported = of(cudaDevAttrGlobalL1CacheSupported);
    p.localL1CacheSupported = of(cudaDevAttrLocalL1CacheSupported);
    p.managedMemory = of(cudaDevAttrManagedMemory);
    p.concurrentManagedAccess = of(cudaDevAttrConcurrentManagedAccess);
    p.computePreemptionSupported = of(cudaDevAttrComputePreemptionSupported);
    p.canUseHostPointerForRegisteredMem = of(cudaDevAttrCanUseHostPointerForRegisteredMem);
    p.hostRegisterSupported = of(cudaDevAttrHostRegisterSupported);
    p.memoryPoolsSupported = of(cudaDevAttrMemoryPoolsSupported);
#if CUDART_VERSION < 13000
    p.deviceOverlap = of(cudaDevAttrGpuOverlap);
    p.singleToDoublePrecisionPerfRatio = of(cudaDevAttrSingleToDoublePrecisionPerfRatio);
#endif
}

}  // namespace

cudaError_t attribute(int id, int device, int& value) {
    if (id < 1 || id > last_attribute) return cudaErrorInvalidValue;
    value = id == cudaDevAttrPciBusId ? pci_bus(device) : 0;
    for (const Attribute& known : attributes)
        if (known.id == id) value = known.value;
    return cudaSuccess;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr id, int device) {
    return call(__func__, [&]() -> cudaError_t {
        if (!value) return cudaErrorInvalidValue;
        if (!is_device(device)) return cudaErrorInvalidDevice;
        return attribute(id, device, *value);
    });
}

// The headers of CUDA 12 make cudaGetDeviceProperties_v2 of this name.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    return call(__func__, [&]() -> cudaError_t {
        if (!properties) return cudaErrorInvalidValue;
        if (!is_device(device)) return cudaErrorInvalidDevice;
        fill(*properties, device);
        return cudaSuccess;
    });
}

}
