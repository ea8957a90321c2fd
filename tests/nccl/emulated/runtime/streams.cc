// Streams, and the order between them and the legacy default stream.
//
// Rules from "CUDA Runtime API", Stream synchronization behavior: an action of the legacy stream
// first waits for all blocking streams of its device, and all blocking streams then wait for it.
// A stream thereby stands for more than its own work: querying or synchronizing the legacy stream
// queries or synchronizes the blocking ones ("CUDA Programming Guide", Prohibited and unhandled
// operations), and a blocking stream includes its wait for the legacy one.
#include "streams.h"

#include "capture.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

namespace emulated {

namespace {

// What a destroyed stream still had to do.
struct Leftover {
    int device;
    bool is_blocking;
    Point last;
};

struct State {
    std::mutex mutex;
    Handles<cudaStream_t, Stream> streams{1};
    std::map<int, StreamPtr> legacy;                                   // by device
    std::map<std::pair<std::thread::id, int>, StreamPtr> per_thread;   // and by device
    std::vector<Leftover> leftovers;
    unsigned long long ids = 0;
};

// Never destroyed: threads of streams may still run while the process ends.
State& state() {
    static State& made = *new State;
    return made;
}

StreamPtr make_stream(int device, unsigned flags, int priority) {
    const auto stream = std::make_shared<Stream>();
    stream->device = device;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = ++state().ids;
    return stream;
}

// Forget a stream; its work goes on.
void leave(const StreamPtr& stream, const Held& held) {
    leave_capture(stream, held);
    auto& leftovers = state().leftovers;
    leftovers.push_back({stream->device, stream->is_blocking(), stream->line->last()});
    const auto passed = [](const Leftover& leftover) { return leftover.last.passed(); };
    leftovers.erase(std::remove_if(leftovers.begin(), leftovers.end(), passed), leftovers.end());
    stream->line->end();
}

// The per-thread default streams of a thread end with it.
struct ThreadEnd {
    ~ThreadEnd() {
        if (is_forked()) return;
        const Held held = hold();
        auto& streams = state().per_thread;
        for (auto at = streams.begin(); at != streams.end();) {
            if (at->first.first != std::this_thread::get_id()) {
                ++at;
                continue;
            }
            leave(at->second, held);
            at = streams.erase(at);
        }
    }
};

StreamPtr legacy_stream(int device) {
    StreamPtr& stream = state().legacy[device];
    if (!stream) {
        stream = make_stream(device, cudaStreamDefault, 0);
        stream->is_legacy = true;
    }
    return stream;
}

StreamPtr per_thread_stream(int device) {
    static thread_local const ThreadEnd end;
    (void)end;
    StreamPtr& stream = state().per_thread[{std::this_thread::get_id(), device}];
    if (!stream) stream = make_stream(device, cudaStreamDefault, 0);
    return stream;
}

}  // namespace

Held hold() {
    return Held(state().mutex);
}

cudaError_t find_stream(cudaStream_t handle, StreamPtr& stream, const Held&) {
    const int device = current_device();
    stream = !handle || handle == cudaStreamLegacy ? legacy_stream(device)
           : handle == cudaStreamPerThread         ? per_thread_stream(device)
                                                   : state().streams.find(handle);
    if (stream) return cudaSuccess;
    return state().streams.was(handle) ? cudaErrorContextIsDestroyed
                                       : cudaErrorInvalidResourceHandle;
}

std::vector<StreamPtr> all_streams(const Held&) {
    std::vector<StreamPtr> all;
    for (const auto& [handle, stream] : state().streams.all()) all.push_back(stream);
    for (const auto& [device, stream] : state().legacy) all.push_back(stream);
    for (const auto& [owner, stream] : state().per_thread) all.push_back(stream);
    return all;
}

std::vector<Point> implicit(const Stream& stream, const Held& held) {
    std::vector<Point> points;
    const auto add = [&points](const Point& point) {
        if (!point.passed()) points.push_back(point);
    };
    if (stream.is_blocking()) {
        const auto legacy = state().legacy.find(stream.device);
        if (legacy != state().legacy.end()) add(legacy->second->line->last());
    }
    if (stream.is_legacy) {
        for (const StreamPtr& other : all_streams(held))
            if (other->device == stream.device && other->is_blocking()) add(other->line->last());
        for (const Leftover& leftover : state().leftovers)
            if (leftover.device == stream.device && leftover.is_blocking) add(leftover.last);
    }
    return points;
}

std::vector<Point> encompassed(const Stream& stream, const Held& held) {
    std::vector<Point> points = implicit(stream, held);
    points.push_back(stream.line->last());
    return points;
}

Point put(const Stream& stream, Job job, const Held& held, std::vector<Point> after) {
    const std::vector<Point> others = implicit(stream, held);
    after.insert(after.end(), others.begin(), others.end());
    return stream.line->put(std::move(after), std::move(job));
}

cudaError_t put_or_capture(Stream& stream, Job job, const Held& held) {
    if (const cudaError_t error = check_usable(stream, held)) return error;
    if (stream.capture) add_node(stream, plain_node(std::move(job)), held);
    else put(stream, std::move(job), held);
    return cudaSuccess;
}

cudaError_t enqueue(cudaStream_t handle, Job job) {
    const Held held = hold();
    StreamPtr stream;
    if (const cudaError_t error = find_stream(handle, stream, held)) return error;
    return put_or_capture(*stream, device_work(stream->device, std::move(job)), held);
}

void synchronize_device(int device) {
    std::vector<Point> points;
    {
        const Held held = hold();
        for (const StreamPtr& stream : all_streams(held))
            if (stream->device == device) points.push_back(stream->line->last());
        for (const Leftover& leftover : state().leftovers)
            if (leftover.device == device) points.push_back(leftover.last);
    }
    for (const Point& point : points) point.wait();
}

int device_of(cudaStream_t handle) {
    const Held held = hold();
    StreamPtr stream;
    find_stream(handle, stream, held);
    return stream ? stream->device : -1;
}

bool is_captured(cudaStream_t handle) {
    const Held held = hold();
    StreamPtr stream;
    find_stream(handle, stream, held);
    return stream && stream->capture;
}

cudaError_t create_stream(cudaStream_t* handle, unsigned flags, int priority) {
    if (!handle || (flags & ~unsigned(cudaStreamNonBlocking))) return cudaErrorInvalidValue;
    const Held held = hold();
    // A priority beyond the range is set to its end, as cudaStreamCreateWithPriority says.
    priority = std::min(std::max(priority, greatest_priority), least_priority);
    *handle = state().streams.add(make_stream(current_device(), flags, priority));
    count(streams, 1);
    return cudaSuccess;
}

cudaError_t destroy_stream(cudaStream_t handle) {
    const Held held = hold();
    StreamPtr stream;
    if (const cudaError_t error = find_stream(handle, stream, held)) return error;
    // The default streams are nobody's to destroy.
    if (!state().streams.remove(handle)) return cudaErrorInvalidResourceHandle;
    leave(stream, held);
    count(streams, -1);
    return cudaSuccess;
}

}  // namespace emulated
