// Captures: what is put on a stream, what may be asked meanwhile, and the end.
//
// Rules from "CUDA Programming Guide", Creating a graph using stream capture (cross-stream
// dependencies, prohibited and unhandled operations, invalidation), and from "CUDA Runtime API",
// Stream Management (cudaThreadExchangeStreamCaptureMode, cudaStreamIsCapturing).
#include "capture.h"

#include <algorithm>
#include <utility>

namespace emulated {

namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// Those that go on; held.
std::vector<std::shared_ptr<Capture>>& ongoing() {
    static auto& made = *new std::vector<std::shared_ptr<Capture>>;
    return made;
}

// Spoil the captures of blocking streams of a device; return whether there are any.
bool spoil_blocking(int device, const Held& held) {
    bool any = false;
    for (const StreamPtr& stream : all_streams(held)) {
        if (!stream->capture || !stream->is_blocking() || stream->device != device) continue;
        stream->capture->is_invalid = true;
        any = true;
    }
    return any;
}

// A thread's mode says which captures forbid it what is unsafe.
bool is_forbidden_by(const Capture& capture) {
    if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
    if (capture.thread == std::this_thread::get_id())
        return capture.mode != cudaStreamCaptureModeRelaxed;
    return thread_mode == cudaStreamCaptureModeGlobal &&
           capture.mode == cudaStreamCaptureModeGlobal;
}

// Return whether the origin has waited for all that other streams of its capture were given.
bool is_joined(const Capture& capture, const Stream& origin, const Held& held) {
    std::vector<bool> reached(capture.graph->nodes.size());
    for (const std::size_t tail : origin.tails) reached[tail] = true;
    // A node comes after nodes of lower numbers only.
    for (std::size_t node = reached.size(); node-- > 0;) {
        if (!reached[node]) continue;
        for (const std::size_t before : capture.graph->nodes[node].after) reached[before] = true;
    }
    const auto is_reached = [&reached](std::size_t tail) { return reached[tail]; };
    const auto all_reached = [&is_reached](const std::vector<std::size_t>& tails) {
        return std::all_of(tails.begin(), tails.end(), is_reached);
    };
    for (const StreamPtr& stream : all_streams(held))
        if (stream->capture.get() == &capture && !all_reached(stream->tails)) return false;
    return all_reached(capture.lost_tails);
}

// Take all streams out of a capture.
void finish(const std::shared_ptr<Capture>& capture, const Held& held) {
    for (const StreamPtr& stream : all_streams(held)) {
        if (stream->capture != capture) continue;
        stream->capture = nullptr;
        stream->tails.clear();
    }
    capture->is_over = true;
    auto& all = ongoing();
    all.erase(std::remove(all.begin(), all.end(), capture), all.end());
    held.drop(capture);
    count(captures, -1);
}

}  // namespace

cudaError_t check_usable(const Stream& stream, const Held& held) {
    if (stream.capture && stream.capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
    if (stream.is_legacy && spoil_blocking(stream.device, held))
        return cudaErrorStreamCaptureImplicit;
    return cudaSuccess;
}

cudaError_t check_observable(const Stream& stream, const Held& held) {
    if (const cudaError_t error = check_usable(stream, held)) return error;
    if (!stream.capture) return cudaSuccess;
    stream.capture->is_invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t check_observable(int device, const Held& held) {
    cudaError_t error = cudaSuccess;
    for (const StreamPtr& stream : all_streams(held)) {
        if (!stream->capture || stream->device != device) continue;
        stream->capture->is_invalid = true;
        error = cudaErrorStreamCaptureUnsupported;
    }
    return error;
}

cudaError_t check_safe(const Held&) {
    cudaError_t error = cudaSuccess;
    for (const std::shared_ptr<Capture>& capture : ongoing()) {
        if (!is_forbidden_by(*capture)) continue;
        capture->is_invalid = true;
        error = cudaErrorStreamCaptureUnsupported;
    }
    return error;
}

cudaError_t unsafe_call() {
    return check_safe(hold());
}

void add_node(Stream& stream, Make make, const Held&) {
    std::vector<Node>& nodes = stream.capture->graph->nodes;
    nodes.push_back({std::move(make), std::move(stream.tails)});
    stream.tails = {nodes.size() - 1};
}

void leave_capture(const StreamPtr& stream, const Held& held) {
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return;
    if (capture->origin.lock() == stream) {  // nothing can end it any more
        finish(capture, held);
        remove_graph(capture->graph->handle, held);
        return;
    }
    auto& lost_tails = capture->lost_tails;
    lost_tails.insert(lost_tails.end(), stream->tails.begin(), stream->tails.end());
    stream->capture = nullptr;
}

cudaError_t begin_capture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed)
        return cudaErrorInvalidValue;
    const Held held = hold();
    const StreamPtr stream = find_stream(handle, held);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->is_legacy) return cudaErrorStreamCaptureUnsupported;
    if (stream->capture) return cudaErrorIllegalState;
    static unsigned long long ids = 0;
    auto capture = std::make_shared<Capture>();
    capture->id = ++ids;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = stream;
    capture->graph = add_graph(held);
    stream->capture = capture;
    stream->tails.clear();
    ongoing().push_back(std::move(capture));
    count(captures, 1);
    return cudaSuccess;
}

cudaError_t end_capture(cudaStream_t handle, cudaGraph_t* graph) {
    if (!graph) return cudaErrorInvalidValue;
    *graph = nullptr;
    const Held held = hold();
    const StreamPtr stream = find_stream(handle, held);
    if (!stream) return cudaErrorInvalidResourceHandle;
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return cudaErrorIllegalState;
    if (capture->origin.lock() != stream) return cudaErrorStreamCaptureUnmatched;
    if (capture->mode != cudaStreamCaptureModeRelaxed &&
        capture->thread != std::this_thread::get_id())
        return cudaErrorStreamCaptureWrongThread;
    const bool joined = is_joined(*capture, *stream, held);
    finish(capture, held);
    if (capture->is_invalid || !joined) {
        remove_graph(capture->graph->handle, held);
        return capture->is_invalid ? cudaErrorStreamCaptureInvalidated
                                   : cudaErrorStreamCaptureUnjoined;
    }
    *graph = capture->graph->handle;
    return cudaSuccess;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return call(__func__, [&]() -> cudaError_t {
        if (!mode || *mode < cudaStreamCaptureModeGlobal || *mode > cudaStreamCaptureModeRelaxed)
            return cudaErrorInvalidValue;
        std::swap(*mode, thread_mode);
        return cudaSuccess;
    });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    return driver_call(__func__, [&] {
        return cudaThreadExchangeStreamCaptureMode(
            reinterpret_cast<cudaStreamCaptureMode*>(mode));
    });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    return call(__func__, [&] { return begin_capture(stream, mode); });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    return call(__func__, [&] { return end_capture(stream, graph); });
}

}
