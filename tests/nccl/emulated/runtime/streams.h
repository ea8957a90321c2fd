// What streams, events, captures and graphs share; none of it is for other parts of the runtime.
#pragma once

#include "handles.h"
#include "line.h"

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace emulated {

struct Capture;

struct Stream {
    int device = 0;
    bool is_legacy = false;
    unsigned flags = cudaStreamDefault;
    int priority = 0;
    unsigned long long id = 0;
    std::shared_ptr<Line> line = std::make_shared<Line>();
    std::shared_ptr<Capture> capture;            // null: what is put there runs
    std::vector<std::size_t> tails;              // nodes that the next one will depend on

    std::vector<cudaGraphNode_t> told;           // the same, as cudaStreamGetCaptureInfo told it

    bool is_blocking() const { return !is_legacy && !(flags & cudaStreamNonBlocking); }
};

using StreamPtr = std::shared_ptr<Stream>;

// The lock of all handles, streams, events, captures and graphs, held while it lives.  Functions
// that take one want it held.
class Held {
public:
    explicit Held(std::mutex& mutex) : lock_(mutex) {}
    // Let go of something after the lock: its end may call functions of the user's.
    void drop(std::shared_ptr<void> thing) const { dropped_.push_back(std::move(thing)); }

private:
    mutable std::vector<std::shared_ptr<void>> dropped_;
    std::unique_lock<std::mutex> lock_;
};

Held hold();

// streams.cc

// Find the stream of a handle, or return the error of one that is none, or none any more.
cudaError_t find_stream(cudaStream_t handle, StreamPtr& stream, const Held&);
// Return all that there are, the legacy ones and those of the threads included.
std::vector<StreamPtr> all_streams(const Held&);
// Return what work that is put on the stream now comes after, besides the stream's own.
std::vector<Point> implicit(const Stream& stream, const Held&);
// Return all that the stream stands for: its own work, and what that implicitly comes after.
std::vector<Point> encompassed(const Stream& stream, const Held&);
// Put what runs as it is on a stream that is not captured, behind `after` too.
Point put(const Stream& stream, Job job, const Held&, std::vector<Point> after = {});
// Put what runs as it is on a stream, or into its capture.
cudaError_t put_or_capture(Stream& stream, Job job, const Held&);
cudaError_t create_stream(cudaStream_t* handle, unsigned flags, int priority);
cudaError_t destroy_stream(cudaStream_t handle);

constexpr int least_priority = 0, greatest_priority = -5;

// work.cc

// Work of a device: it runs once the device answers, with memory open, and not on a lost one.
Job device_work(int device, Job job);
// What touches no memory, such as a mark of the device's progress.
Job quiet_work(int device, Job job);
// A function of the user's on the host: no memory is open, and it may not call CUDA.
Job host_work(int device, Job job);
// The same, but it runs on a lost device too.
Job callback_work(int device, Job job);
// Run a function of the user's: on this thread CUDA may not be called meanwhile.
void on_host(const Job& job);

}  // namespace emulated
