// Waits of streams for events, by which streams are drawn into a capture and joined again.
//
// Rules from "CUDA Runtime API", cudaStreamWaitEvent, "CUDA Driver API", cuStreamWaitEvent (the
// external flag is invalid outside of captures), and "CUDA Programming Guide", Cross-stream
// dependencies and events, Prohibited and unhandled operations.
#include "events.h"

#include <algorithm>
#include <utility>

namespace emulated {

namespace {

// A node that waits, at each launch, for what the event has recorded by then.
Node wait_node(const EventPtr& event) {
    const std::weak_ptr<Event> weak = event;
    const auto make = [weak](const Held&) -> Job {
        const EventPtr live = weak.lock();
        const auto recording = live ? live->recording : nullptr;
        return [recording] {
            if (recording) recording->point.wait();
        };
    };
    return {make, {}, true};
}

// Let the next node of the stream come after those of a captured event, too.
void depend(Stream& stream, const Event& event) {
    for (const std::size_t node : event.nodes) {
        auto& tails = stream.tails;
        if (std::find(tails.begin(), tails.end(), node) == tails.end()) tails.push_back(node);
    }
}

// Wait for an event that was recorded in a capture.
cudaError_t wait_captured(Stream& stream, const Event& event) {
    Capture& other = *event.capture;
    if (!other.graph) {  // it is over
        if (stream.capture) spoil(*stream.capture, cudaErrorCapturedEvent);
        return cudaErrorCapturedEvent;
    }
    if (other.is_invalid) return cudaErrorStreamCaptureInvalidated;
    if (stream.is_legacy) return spoil(other, cudaErrorStreamCaptureImplicit);
    if (stream.capture && stream.capture != event.capture) {
        spoil(other, cudaErrorStreamCaptureMerge);
        return spoil(*stream.capture, cudaErrorStreamCaptureMerge);
    }
    stream.capture = event.capture;
    depend(stream, event);
    return cudaSuccess;
}

cudaError_t wait(cudaStream_t stream_handle, cudaEvent_t event_handle, unsigned flags) {
    if (flags & ~unsigned(cudaEventWaitExternal)) return cudaErrorInvalidValue;
    const Held held = hold();
    EventPtr event;
    StreamPtr stream;
    if (const cudaError_t error = find_stream(stream_handle, stream, held)) return error;
    if (const cudaError_t error = find_event(event_handle, event, held)) return error;
    if (const cudaError_t error = check_usable(*stream, held)) return error;
    if (flags && !stream->capture) return cudaErrorInvalidValue;
    if (flags) {
        add_node(*stream, wait_node(event), held);
        return cudaSuccess;
    }
    if (event->capture) return wait_captured(*stream, *event);
    if (stream->capture) return spoil(*stream->capture, cudaErrorStreamCaptureIsolation);
    if (event->recording) put(*stream, [] {}, held, {event->recording->point});
    return cudaSuccess;
}

}  // namespace

}  // namespace emulated

using namespace emulated;

extern "C" {

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    return call(__func__, [&] { return wait(stream, event, flags); });
}

}
