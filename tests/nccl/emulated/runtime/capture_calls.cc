// The functions of CUDA's interface that make captures and tell of them.
//
// Rules from "CUDA Runtime API", Stream Management.
#include "capture.h"

#include <algorithm>
#include <utility>

namespace emulated {

namespace {

// A node's handle is the integer behind its graph's, so that one of another graph is found.
cudaGraphNode_t node_handle(const Graph& graph, std::size_t node) {
    return reinterpret_cast<cudaGraphNode_t>(
        reinterpret_cast<std::uintptr_t>(graph.handle) + 1 + node);
}

bool find_node(const Graph& graph, cudaGraphNode_t handle, std::size_t& node) {
    node = reinterpret_cast<std::uintptr_t>(handle) -
           reinterpret_cast<std::uintptr_t>(graph.handle) - 1;
    return node < graph.nodes.size();
}

cudaStreamCaptureStatus status_of(const Stream& stream) {
    if (!stream.capture) return cudaStreamCaptureStatusNone;
    return stream.capture->is_invalid ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
}

// Find a stream to tell of; beside a captured one the legacy stream is not told of.
cudaError_t find_told(cudaStream_t handle, StreamPtr& stream, const Held& held) {
    if (const cudaError_t error = find_stream(handle, stream, held)) return error;
    return stream->is_legacy && is_blocked(stream->device, held) ? cudaErrorStreamCaptureImplicit
                                                                 : cudaSuccess;
}

// Where the answers of cudaStreamGetCaptureInfo go; all but the first may be null.
struct Answers {
    cudaStreamCaptureStatus* status;
    unsigned long long* id;
    cudaGraph_t* graph;
    const cudaGraphNode_t** dependencies;
    const cudaGraphEdgeData** edges;
    std::size_t* count;
};

cudaError_t tell(cudaStream_t handle, const Answers& answers) {
    if (!answers.status || (answers.edges && !answers.dependencies)) return cudaErrorInvalidValue;
    const Held held = hold();
    StreamPtr stream;
    if (const cudaError_t error = find_told(handle, stream, held)) return error;
    *answers.status = status_of(*stream);
    if (*answers.status != cudaStreamCaptureStatusActive) return cudaSuccess;
    const Graph& graph = *stream->capture->graph;
    stream->told.clear();
    for (const std::size_t node : stream->tails) stream->told.push_back(node_handle(graph, node));
    if (answers.id) *answers.id = stream->capture->id;
    if (answers.graph) *answers.graph = graph.handle;
    if (answers.dependencies) *answers.dependencies = stream->told.data();
    if (answers.edges) *answers.edges = nullptr;  // no edge has data here
    if (answers.count) *answers.count = stream->told.size();
    return cudaSuccess;
}

cudaError_t update(cudaStream_t handle, const cudaGraphNode_t* dependencies, std::size_t count,
                   unsigned flags) {
    if (flags > cudaStreamSetCaptureDependencies || (count && !dependencies))
        return cudaErrorInvalidValue;
    const Held held = hold();
    StreamPtr stream;
    if (const cudaError_t error = find_stream(handle, stream, held)) return error;
    if (!stream->capture) return cudaErrorIllegalState;
    if (const cudaError_t error = check_usable(*stream, held)) return error;
    std::vector<std::size_t> tails;
    if (flags == cudaStreamAddCaptureDependencies) tails = stream->tails;
    for (std::size_t i = 0; i < count; ++i) {
        std::size_t node;
        if (!find_node(*stream->capture->graph, dependencies[i], node))
            return cudaErrorInvalidValue;
        if (std::find(tails.begin(), tails.end(), node) == tails.end()) tails.push_back(node);
    }
    stream->tails = std::move(tails);
    return cudaSuccess;
}

}  // namespace

}  // namespace emulated

using namespace emulated;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    return call(__func__, [&] { return begin_capture(stream, mode); });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    return call(__func__, [&] { return end_capture(stream, graph); });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return call(__func__, [&] { return exchange_mode(mode); });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    // The driver's modes have the runtime's numbers.
    return driver_call(__func__, [&] {
        return exchange_mode(reinterpret_cast<cudaStreamCaptureMode*>(mode));
    });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
    return call(__func__, [&]() -> cudaError_t {
        if (!status) return cudaErrorInvalidValue;
        const Held held = hold();
        StreamPtr stream;
        if (const cudaError_t error = find_told(handle, stream, held)) return error;
        *status = status_of(*stream);
        return cudaSuccess;
    });
}

#if CUDART_VERSION < 13000

cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                        unsigned long long* id, cudaGraph_t* graph,
                                        const cudaGraphNode_t** dependencies, size_t* count) {
    return call(__func__, [&] {
        return tell(stream, {status, id, graph, dependencies, nullptr, count});
    });
}

cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                        unsigned long long* id, cudaGraph_t* graph,
                                        const cudaGraphNode_t** dependencies,
                                        const cudaGraphEdgeData** edges, size_t* count) {
    return call(__func__, [&] {
        return tell(stream, {status, id, graph, dependencies, edges, count});
    });
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* dependencies,
                                                size_t count, unsigned flags) {
    return call(__func__, [&] { return update(stream, dependencies, count, flags); });
}

cudaError_t cudaStreamUpdateCaptureDependencies_v2(cudaStream_t stream,
                                                   cudaGraphNode_t* dependencies,
                                                   const cudaGraphEdgeData* edges, size_t count,
                                                   unsigned flags) {
    return call(__func__, [&]() -> cudaError_t {
        if (edges) return not_emulated("cudaGraphEdgeData");
        return update(stream, dependencies, count, flags);
    });
}

#else

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
    return call(__func__, [&] {
        return tell(stream, {status, id, graph, dependencies, edges, count});
    });
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* dependencies,
                                                const cudaGraphEdgeData* edges, size_t count,
                                                unsigned flags) {
    return call(__func__, [&]() -> cudaError_t {
        if (edges) return not_emulated("cudaGraphEdgeData");
        return update(stream, dependencies, count, flags);
    });
}

#endif

}
