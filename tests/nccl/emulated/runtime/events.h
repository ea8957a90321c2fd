// Events, as streams, captures and graphs see them.
#pragma once

#include "capture.h"

#include <chrono>

namespace emulated {

// One record of an event.
struct Recording {
    Point point;
    std::chrono::steady_clock::time_point at;  // known once the point is passed
};

struct Event {
    int device = 0;
    unsigned flags = cudaEventDefault;
    // What was recorded last is one of these, or nothing.
    std::shared_ptr<Recording> recording;
    std::shared_ptr<Capture> capture;
    std::vector<std::size_t> nodes;            // of the capture
};

using EventPtr = std::shared_ptr<Event>;

// Find the event of a handle, or return the error of one that is none, or none any more.
cudaError_t find_event(cudaEvent_t handle, EventPtr& event, const Held&);

}  // namespace emulated
