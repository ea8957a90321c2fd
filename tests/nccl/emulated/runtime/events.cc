// Events: records, waits of the host for them, and the time between two.
//
// Rules from "CUDA Runtime API", Event Management, and "CUDA Programming Guide", Stream and event
// behavior (which of them take an event of another device).
#include "events.h"

#include <utility>

namespace emulated {

namespace {

constexpr unsigned known_flags =
    cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;

Handles<cudaEvent_t, Event>& all_events() {
    static auto& made = *new Handles<cudaEvent_t, Event>(2);
    return made;
}

cudaError_t create_event(cudaEvent_t* handle, unsigned flags) {
    if (!handle || (flags & ~known_flags)) return cudaErrorInvalidValue;
    if (flags & cudaEventInterprocess) {
        if (!(flags & cudaEventDisableTiming)) return cudaErrorInvalidValue;
        return not_emulated("cudaEventInterprocess");
    }
    const Held held = hold();
    const auto event = std::make_shared<Event>();
    event->device = current_device();
    event->flags = flags;
    *handle = all_events().add(event);
    count(events, 1);
    return cudaSuccess;
}

// Record into a capture: the event is a place in it from now on, and means nothing outside.
void record_captured(Event& event, const Stream& stream) {
    event.recording = nullptr;
    event.capture = stream.capture;
    event.nodes = stream.tails;
}

// Begin a record that is complete once `progress` has come to 1, by the job that is returned.
Job begin_record(Event& event, int device) {
    const auto progress = std::make_shared<Progress>();
    const auto recording = std::make_shared<Recording>();
    recording->point = Point(progress, 1);
    event.recording = recording;
    event.capture = nullptr;
    event.nodes.clear();
    return quiet_work(device, [progress, recording] {
        recording->at = std::chrono::steady_clock::now();
        progress->advance();
    });
}

// A node that records the event at each launch.
Make record_node(const EventPtr& event, int device) {
    const std::weak_ptr<Event> weak = event;
    return [weak, device](const Held&) {
        const EventPtr live = weak.lock();
        return live ? begin_record(*live, device) : [] {};
    };
}

cudaError_t record(cudaEvent_t handle, cudaStream_t stream_handle, unsigned flags) {
    if (flags & ~unsigned(cudaEventRecordExternal)) return cudaErrorInvalidValue;
    const Held held = hold();
    EventPtr event;
    StreamPtr stream;
    if (const cudaError_t error = find_event(handle, event, held)) return error;
    if (const cudaError_t error = find_stream(stream_handle, stream, held)) return error;
    if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = check_usable(*stream, held)) return error;
    if (flags && !stream->capture) return cudaErrorInvalidValue;
    if (flags) add_node(*stream, {record_node(event, stream->device), {}, false}, held);
    else if (stream->capture) record_captured(*event, *stream);
    else put(*stream, begin_record(*event, stream->device), held);
    return cudaSuccess;
}

// Return the error of a look at an event that was last recorded in a capture; it spoils that.
cudaError_t check_captured(const Event& event) {
    if (!event.capture) return cudaSuccess;
    return spoil(*event.capture, cudaErrorCapturedEvent);
}

// Find what the host wants to know of: null for an event that was never recorded.
cudaError_t observe(cudaEvent_t handle, std::shared_ptr<Recording>& recording) {
    const Held held = hold();
    EventPtr event;
    if (const cudaError_t error = find_event(handle, event, held)) return error;
    if (const cudaError_t error = check_captured(*event)) return error;
    if (const cudaError_t error = check_safe(held)) return error;
    recording = event->recording;
    return cudaSuccess;
}

cudaError_t elapsed(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    if (!milliseconds) return cudaErrorInvalidValue;
    const Held held = hold();
    EventPtr events[2];
    if (const cudaError_t error = find_event(start, events[0], held)) return error;
    if (const cudaError_t error = find_event(end, events[1], held)) return error;
    for (const EventPtr& event : events) {
        if (const cudaError_t error = check_captured(*event)) return error;
        if (event->flags & cudaEventDisableTiming) return cudaErrorInvalidResourceHandle;
        if (!event->recording) return cudaErrorInvalidResourceHandle;
    }
    if (events[0]->device != events[1]->device) return cudaErrorInvalidResourceHandle;
    for (const EventPtr& event : events)
        if (!event->recording->point.passed()) return cudaErrorNotReady;
    const auto between = events[1]->recording->at - events[0]->recording->at;
    *milliseconds = std::chrono::duration<float, std::milli>(between).count();
    return cudaSuccess;
}

}  // namespace

cudaError_t find_event(cudaEvent_t handle, EventPtr& event, const Held&) {
    event = all_events().find(handle);
    if (event) return cudaSuccess;
    return all_events().was(handle) ? cudaErrorContextIsDestroyed : cudaErrorInvalidResourceHandle;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return call(__func__, [&] { return create_event(event, cudaEventDefault); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    return call(__func__, [&] { return create_event(event, flags); });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    return call(__func__, [&]() -> cudaError_t {
        const Held held = hold();
        EventPtr event;
        if (const cudaError_t error = find_event(handle, event, held)) return error;
        all_events().remove(handle);
        count(events, -1);
        return cudaSuccess;
    });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return call(__func__, [&] { return record(event, stream, cudaEventRecordDefault); });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    return call(__func__, [&] { return record(event, stream, flags); });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return call(__func__, [&]() -> cudaError_t {
        std::shared_ptr<Recording> recording;
        if (const cudaError_t error = observe(event, recording)) return error;
        return !recording || recording->point.passed() ? cudaSuccess : cudaErrorNotReady;
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return call(__func__, [&]() -> cudaError_t {
        std::shared_ptr<Recording> recording;
        if (const cudaError_t error = observe(event, recording)) return error;
        if (recording) recording->point.wait();
        return lost();
    });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    return call(__func__, [&] { return elapsed(milliseconds, start, end); });
}

#if CUDART_VERSION >= 12080 && CUDART_VERSION < 13000
cudaError_t cudaEventElapsedTime_v2(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    return call(__func__, [&] { return elapsed(milliseconds, start, end); });
}
#endif

}
