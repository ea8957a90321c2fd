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

bool is_mode(int mode) {
    return mode >= cudaStreamCaptureModeGlobal && mode <= cudaStreamCaptureModeRelaxed;
}

// Return the blocking streams of a device that are captured.
std::vector<StreamPtr> captured_blocking(int device, const Held& held) {
    std::vector<StreamPtr> found;
    for (const StreamPtr& stream : all_streams(held))
        if (stream->capture && stream->is_blocking() && stream->device == device)
            found.push_back(stream);
    return found;
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

// Take all streams out of a capture, and the graph.
cudaGraph_t finish(const std::shared_ptr<Capture>& capture, const Held& held) {
    for (const StreamPtr& stream : all_streams(held)) {
        if (stream->capture != capture) continue;
        stream->capture = nullptr;
        stream->tails.clear();
    }
    auto& all = ongoing();
    all.erase(std::remove(all.begin(), all.end(), capture), all.end());
    count(captures, -1);
    const cudaGraph_t graph = capture->graph->handle;
    capture->graph->is_captured = false;
    capture->graph = nullptr;  // which the handle keeps
    return graph;
}

}  // namespace

cudaError_t spoil(Capture& capture, cudaError_t error) {
    capture.is_invalid = true;
    return error;
}

cudaError_t check_usable(const Stream& stream, const Held& held) {
    if (stream.capture && stream.capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
    cudaError_t error = cudaSuccess;
    if (!stream.is_legacy) return error;
    for (const StreamPtr& other : captured_blocking(stream.device, held))
        error = spoil(*other->capture, cudaErrorStreamCaptureImplicit);
    return error;
}

bool is_blocked(int device, const Held& held) {
    return !captured_blocking(device, held).empty();
}

cudaError_t check_observable(const Stream& stream, const Held& held) {
    if (const cudaError_t error = check_usable(stream, held)) return error;
    if (!stream.capture) return cudaSuccess;
    return spoil(*stream.capture, cudaErrorStreamCaptureUnsupported);
}

cudaError_t check_observable(int device, const Held& held) {
    cudaError_t error = cudaSuccess;
    for (const StreamPtr& stream : all_streams(held)) {
        if (!stream->capture || stream->device != device) continue;
        error = spoil(*stream->capture, cudaErrorStreamCaptureUnsupported);
    }
    return error;
}

cudaError_t check_safe(const Held&) {
    cudaError_t error = cudaSuccess;
    for (const std::shared_ptr<Capture>& capture : ongoing()) {
        if (!is_forbidden_by(*capture)) continue;
        error = spoil(*capture, cudaErrorStreamCaptureUnsupported);
    }
    return error;
}

cudaError_t unsafe_call() {
    return check_safe(hold());
}

cudaError_t unsafe_synchronous_call() {
    const Held held = hold();
    StreamPtr legacy;
    if (const cudaError_t error = find_stream(cudaStreamLegacy, legacy, held)) return error;
    if (const cudaError_t error = check_usable(*legacy, held)) return error;
    return check_safe(held);
}

void add_node(Stream& stream, Node node, const Held&) {
    std::vector<Node>& nodes = stream.capture->graph->nodes;
    node.after = std::move(stream.tails);
    nodes.push_back(std::move(node));
    stream.tails = {nodes.size() - 1};
}

void leave_capture(const StreamPtr& stream, const Held& held) {
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return;
    if (capture->origin.lock() == stream) {  // nothing can end it any more
        remove_graph(finish(capture, held), held);
        return;
    }
    auto& lost_tails = capture->lost_tails;
    lost_tails.insert(lost_tails.end(), stream->tails.begin(), stream->tails.end());
    stream->capture = nullptr;
}

cudaError_t begin_capture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    if (!is_mode(mode)) return cudaErrorInvalidValue;
    const Held held = hold();
    StreamPtr stream;
    if (const cudaError_t error = find_stream(handle, stream, held)) return error;
    if (stream->is_legacy) return cudaErrorStreamCaptureUnsupported;
    if (stream->capture) return cudaErrorIllegalState;
    static unsigned long long ids = 0;
    auto capture = std::make_shared<Capture>();
    capture->id = ++ids;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = stream;
    capture->graph = add_graph(held);
    capture->graph->is_captured = true;
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
    StreamPtr stream;
    if (const cudaError_t error = find_stream(handle, stream, held)) return error;
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return cudaErrorIllegalState;
    if (capture->origin.lock() != stream)
        return spoil(*capture, cudaErrorStreamCaptureUnmatched);
    if (capture->mode != cudaStreamCaptureModeRelaxed &&
        capture->thread != std::this_thread::get_id())
        return spoil(*capture, cudaErrorStreamCaptureWrongThread);
    const bool joined = is_joined(*capture, *stream, held);
    const cudaGraph_t made = finish(capture, held);
    if (!capture->is_invalid && joined) {
        *graph = made;
        return cudaSuccess;
    }
    remove_graph(made, held);
    return capture->is_invalid ? cudaErrorStreamCaptureInvalidated
                               : cudaErrorStreamCaptureUnjoined;
}

cudaError_t exchange_mode(cudaStreamCaptureMode* mode) {
    if (!mode || !is_mode(*mode)) return cudaErrorInvalidValue;
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}

}  // namespace emulated
