// Waits of the host for streams and devices, and looks at them.
#include "capture.h"

namespace emulated {

namespace {

cudaError_t wait_for(const std::vector<Point>& points) {
    for (const Point& point : points) point.wait();
    return lost();
}

// Find what a stream stands for, where it may be waited for or queried.
cudaError_t observe(cudaStream_t handle, std::vector<Point>& points, const Held& held) {
    StreamPtr stream;
    if (const cudaError_t error = find_stream(handle, stream, held)) return error;
    if (const cudaError_t error = check_observable(*stream, held)) return error;
    points = encompassed(*stream, held);
    return cudaSuccess;
}

// The same as the user's call, which another capture may forbid.
cudaError_t observe_safely(cudaStream_t handle, std::vector<Point>& points) {
    const Held held = hold();
    if (const cudaError_t error = observe(handle, points, held)) return error;
    return check_safe(held);
}

}  // namespace

cudaError_t synchronize(cudaStream_t handle) {
    std::vector<Point> points;
    {
        const Held held = hold();
        if (const cudaError_t error = observe(handle, points, held)) return error;
    }
    return wait_for(points);
}

}  // namespace emulated

using namespace emulated;

extern "C" {

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return call(__func__, [&]() -> cudaError_t {
        std::vector<Point> points;
        if (const cudaError_t error = observe_safely(stream, points)) return error;
        return wait_for(points);
    });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return call(__func__, [&]() -> cudaError_t {
        std::vector<Point> points;
        if (const cudaError_t error = observe_safely(stream, points)) return error;
        for (const Point& point : points)
            if (!point.passed()) return cudaErrorNotReady;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceSynchronize(void) {
    return call(__func__, [&]() -> cudaError_t {
        const int device = current_device();
        {
            const Held held = hold();
            if (const cudaError_t error = check_observable(device, held)) return error;
            if (const cudaError_t error = check_safe(held)) return error;
        }
        synchronize_device(device);
        return cudaSuccess;
    });
}

}
