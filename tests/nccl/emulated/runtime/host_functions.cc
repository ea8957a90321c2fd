// Functions of the user's on the host, in the order of a stream.
//
// Rules from "CUDA Runtime API", cudaLaunchHostFunc and cudaStreamAddCallback: neither may call
// CUDA (cudaErrorNotPermitted); the first is not called on a lost device and can be captured, the
// second is called with the device's error and cannot be captured.
#include "capture.h"

using namespace emulated;

extern "C" {

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
    return call(__func__, [&]() -> cudaError_t {
        if (!function) return cudaErrorInvalidValue;
        const Held held = hold();
        StreamPtr stream;
        if (const cudaError_t error = find_stream(handle, stream, held)) return error;
        Job job = host_work(stream->device, [function, data] { function(data); });
        return put_or_capture(*stream, std::move(job), held);
    });
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback, void* data,
                                  unsigned flags) {
    return call(__func__, [&]() -> cudaError_t {
        if (!callback || flags) return cudaErrorInvalidValue;
        const Held held = hold();
        StreamPtr stream;
        if (const cudaError_t error = find_stream(handle, stream, held)) return error;
        if (const cudaError_t error = check_observable(*stream, held)) return error;
        const auto job = [=] { callback(handle, lost(), data); };
        put(*stream, callback_work(stream->device, job), held);
        return cudaSuccess;
    });
}

}
