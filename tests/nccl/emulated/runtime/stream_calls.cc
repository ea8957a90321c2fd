// The functions of CUDA's interface that make streams and tell of them.
#include "streams.h"

#include <memory>
#include <utility>

using namespace emulated;

namespace {

// Let `tell` answer about the stream of a handle.
template <class Tell>
cudaError_t about(cudaStream_t handle, const void* answer, Tell tell) {
    const Held held = hold();
    StreamPtr stream;
    if (const cudaError_t error = find_stream(handle, stream, held)) return error;
    if (!answer) return cudaErrorInvalidValue;
    tell(*stream);
    return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return call(__func__, [&] { return create_stream(stream, cudaStreamDefault, 0); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return call(__func__, [&] { return create_stream(stream, flags, 0); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
    return call(__func__, [&] { return create_stream(stream, flags, priority); });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return call(__func__, [&] { return destroy_stream(stream); });
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
    return call(__func__, [&] {
        return about(handle, flags, [&](const Stream& stream) { *flags = stream.flags; });
    });
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
    return call(__func__, [&] {
        return about(handle, priority, [&](const Stream& stream) { *priority = stream.priority; });
    });
}

cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
    return call(__func__, [&] {
        return about(handle, id, [&](const Stream& stream) { *id = stream.id; });
    });
}

#if CUDART_VERSION >= 12080
cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
    return call(__func__, [&] {
        return about(handle, device, [&](const Stream& stream) { *device = stream.device; });
    });
}
#endif

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return call(__func__, [&] {
        if (least) *least = least_priority;
        if (greatest) *greatest = greatest_priority;
        return cudaSuccess;
    });
}

int emulated_enqueue(cudaStream_t stream, void (*job)(void*), void* data, void (*release)(void*)) {
    const std::shared_ptr<void> kept(data, [release](void* end) {
        if (release) release(end);
    });
    return enqueue(stream, [job, kept] { job(kept.get()); });
}

int emulated_stream_device(cudaStream_t stream) {
    return device_of(stream);
}

}
