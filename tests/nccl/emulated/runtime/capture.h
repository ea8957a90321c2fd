// Captures: streams that record what is put on them, instead of doing it.
#pragma once

#include "graphs.h"

#include <thread>

namespace emulated {

struct Capture {
    unsigned long long id;
    cudaStreamCaptureMode mode;
    std::thread::id thread;          // that began it
    std::weak_ptr<Stream> origin;    // on which it began
    std::shared_ptr<Graph> graph;    // null when it is over
    bool is_invalid = false;
    std::vector<std::size_t> lost_tails;  // of streams that were destroyed in it
};

// Make a capture invalid; return `error`.
cudaError_t spoil(Capture& capture, cudaError_t error);
// Return the error of work that is put on the stream: of a spoilt capture, or of the legacy stream
// beside a captured one, which that spoils.
cudaError_t check_usable(const Stream& stream, const Held&);
// Tell whether a blocking stream of the device is captured, so that its legacy stream is unusable.
bool is_blocked(int device, const Held&);
// Return the error of a wait for the stream, or of a query; it spoils a capture.
cudaError_t check_observable(const Stream& stream, const Held&);
// Return the error of a wait for a device; it spoils all captures there.
cudaError_t check_observable(int device, const Held&);
// Take the stream, which ends, out of its capture.
void leave_capture(const StreamPtr& stream, const Held&);
// Add a node behind what the capture has of the stream.
void add_node(Stream& stream, Node node, const Held&);
// What `unsafe_call` does.
cudaError_t check_safe(const Held&);

cudaError_t begin_capture(cudaStream_t handle, cudaStreamCaptureMode mode);
cudaError_t end_capture(cudaStream_t handle, cudaGraph_t* graph);
cudaError_t exchange_mode(cudaStreamCaptureMode* mode);

}  // namespace emulated
