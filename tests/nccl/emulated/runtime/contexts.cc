// Devices and contexts as the driver has them.
//
// Rules from "CUDA Driver API", Device, Primary Context and Context Management, and from "CUDA
// Programming Guide", Initialization: functions of the runtime make the primary context of the
// current device and give it to the thread, but for those that only ask about devices and errors.
// There are no other contexts: cuCtxCreate is not emulated.
#include "device.h"

#include <cstring>
#include <mutex>

namespace emulated {
namespace {

// A handle is the address of one of these.
struct Context {
    std::mutex mutex;
    int retained = 0;            // by cuDevicePrimaryCtxRetain
};

Context* contexts() {
    static Context* made = new Context[static_cast<std::size_t>(devices())];
    return made;
}

thread_local bool bound = false;

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(&contexts()[device]); }

bool find_device(CUcontext context, int& device) {
    for (device = 0; device < devices(); ++device)
        if (context_of(device) == context) return true;
    return false;
}

// Functions that ask about devices, versions and errors, and leave a thread without a context.
constexpr const char* without_context[] = {
    "cudaGetDevice", "cudaGetDeviceCount", "cudaDeviceGetAttribute", "cudaGetDeviceProperties",
    "cudaGetDeviceProperties_v2", "cudaDeviceGetPCIBusId", "cudaDeviceGetByPCIBusId",
    "cudaDeviceCanAccessPeer", "cudaRuntimeGetVersion", "cudaDriverGetVersion",
    "cudaThreadExchangeStreamCaptureMode", "cudaProfilerStart", "cudaProfilerStop",
};

CUresult set_current(CUcontext context) {
    int device = 0;
    if (!context) {
        bound = false;
        return CUDA_SUCCESS;
    }
    if (!find_device(context, device)) return CUDA_ERROR_INVALID_CONTEXT;
    set_current_device(device);
    bound = true;
    return CUDA_SUCCESS;
}

template <class Body>
CUresult of_device(const char* function, CUdevice device, const void* answer, Body body) {
    return driver_call(function, [&]() -> cudaError_t {
        if (!answer) return cudaErrorInvalidValue;
        if (!is_device(device)) return cudaErrorInvalidDevice;
        return body();
    });
}

}  // namespace

bool has_context() { return bound; }

void bind_context_for(const char* runtime_function) {
    if (bound) return;
    for (const char* name : without_context)
        if (!std::strcmp(name, runtime_function)) return;
    bound = true;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

CUresult cuInit(unsigned flags) {
    return driver_call(__func__, [&] { return flags ? cudaErrorInvalidValue : cudaSuccess; });
}

CUresult cuDriverGetVersion(int* version) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
    return driver_call(__func__, [&]() -> cudaError_t {
        if (!count) return cudaErrorInvalidValue;
        *count = devices();
        return cudaSuccess;
    });
}

CUresult cuDeviceGet(CUdevice* device, int index) {
    return of_device(__func__, index, device, [&]() -> cudaError_t {
        *device = index;
        return cudaSuccess;
    });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute id, CUdevice device) {
    return of_device(__func__, device, value, [&] { return attribute(id, device, *value); });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    return of_device(__func__, device, context, [&]() -> cudaError_t {
        const std::lock_guard<std::mutex> hold(contexts()[device].mutex);
        ++contexts()[device].retained;
        *context = context_of(device);
        return cudaSuccess;
    });
}

// The last release would reset the context; the runtime's own use keeps it, as it does in CUDA.
CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return driver_call(__func__, [&]() -> cudaError_t {
        if (!is_device(device)) return cudaErrorInvalidDevice;
        const std::lock_guard<std::mutex> hold(contexts()[device].mutex);
        if (!contexts()[device].retained) return cudaErrorDeviceUninitialized;
        --contexts()[device].retained;
        return cudaSuccess;
    });
}

CUresult cuCtxGetCurrent(CUcontext* context) {
    return driver_call(__func__, [&]() -> cudaError_t {
        if (!context) return cudaErrorInvalidValue;
        *context = has_context() ? context_of(current_device()) : nullptr;
        return cudaSuccess;
    });
}

CUresult cuCtxSetCurrent(CUcontext context) {
    return driver_call(__func__,
                       [&] { return static_cast<cudaError_t>(set_current(context)); });
}

CUresult cuCtxGetDevice(CUdevice* device) {
    return driver_call(__func__, [&]() -> cudaError_t {
        if (!device) return cudaErrorInvalidValue;
        if (!has_context()) return cudaErrorDeviceUninitialized;
        *device = current_device();
        return cudaSuccess;
    });
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
    return driver_call(__func__, [&]() -> cudaError_t {
        if (!context) return cudaErrorInvalidValue;
        const int device = device_of(stream);
        if (device < 0) return cudaErrorInvalidResourceHandle;
        *context = context_of(device);
        return cudaSuccess;
    });
}

}
