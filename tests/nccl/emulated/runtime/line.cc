#include "line.h"

#include <pthread.h>

#include <chrono>
#include <limits>
#include <thread>
#include <utility>

namespace emulated {

namespace {

constexpr std::uint64_t nobody = std::numeric_limits<std::uint64_t>::max();
// The loss of a context does not wake those who wait: they look for it this often.
constexpr std::chrono::milliseconds look{5};

std::atomic<bool> used{false}, forked{false};
const int registered = pthread_atfork(nullptr, nullptr, [] { forked = used.load(); });

}  // namespace

bool is_forked() {
    return registered == 0 && forked;
}

void note_use() {
    used = true;
}

Progress::Progress() : wanted_(nobody) {}

void Progress::wait(std::uint64_t number) {
    if (is_forked()) return;
    std::unique_lock<std::mutex> lock(mutex_);
    while (done_ < number && lost() == cudaSuccess) {
        if (number < wanted_) wanted_ = number;
        changed_.wait_for(lock, look);
    }
}

void Progress::advance() {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (++done_ < wanted_) return;
    wanted_ = nobody;  // those who wait for more say so again
    changed_.notify_all();
}

Point::Point(std::shared_ptr<Progress> progress, std::uint64_t number)
    : progress_(std::move(progress)), number_(number) {}

bool Point::passed() const {
    return !progress_ || progress_->has_come_to(number_);
}

void Point::wait() const {
    if (!passed()) progress_->wait(number_);
}

Point Line::put(std::vector<Point> after, Job job) {
    const std::lock_guard<std::mutex> guard(mutex_);
    entries_.push_back({std::move(after), std::move(job)});
    if (!started_) start();
    if (idle_) filled_.notify_one();
    return {progress_, ++put_};
}

Point Line::last() {
    const std::lock_guard<std::mutex> guard(mutex_);
    return {progress_, put_};
}

void Line::end() {
    const std::lock_guard<std::mutex> guard(mutex_);
    ended_ = true;
    filled_.notify_one();
}

void Line::start() {
    started_ = true;
    count(threads, 1);
    std::thread([self = shared_from_this()] { self->run(); }).detach();
}

void Line::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        idle_ = true;
        filled_.wait(lock, [this] { return ended_ || !entries_.empty(); });
        idle_ = false;
        if (entries_.empty()) break;
        {
            const Entry entry = std::move(entries_.front());
            entries_.pop_front();
            lock.unlock();
            for (const Point& point : entry.after) point.wait();
            entry.job();
        }  // what the job holds is free before anybody hears that it has run
        progress_->advance();
        lock.lock();
    }
    count(threads, -1);
}

}  // namespace emulated
