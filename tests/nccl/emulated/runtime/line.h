// Work that runs in order, on a thread of its own.
#pragma once

#include "emulated.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

namespace emulated {

// How far something has come, as a number that grows.
class Progress {
public:
    Progress();
    bool has_come_to(std::uint64_t number) const { return done_ >= number; }
    // Return once it has, or once the context is lost.
    void wait(std::uint64_t number);
    void advance();

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<std::uint64_t> done_{0};
    std::uint64_t wanted_;  // the least number that a thread waits for
};

// A place in the work of a device: passed once all work before it has run.
class Point {
public:
    Point() = default;  // passed from the beginning
    Point(std::shared_ptr<Progress> progress, std::uint64_t number);
    bool passed() const;
    // Return once it is passed, or once the context is lost.
    void wait() const;

private:
    std::shared_ptr<Progress> progress_;
    std::uint64_t number_ = 0;
};

class Line : public std::enable_shared_from_this<Line> {
public:
    // Put `job` behind all that the line has and behind `after`; return the place behind it.
    Point put(std::vector<Point> after, Job job);
    // Return the place behind all that the line has.
    Point last();
    // End the thread when it has run all that the line has; nothing may be put there any more.
    void end();

private:
    struct Entry {
        std::vector<Point> after;
        Job job;
    };

    void start();
    void run();

    std::mutex mutex_;
    std::condition_variable filled_;
    std::deque<Entry> entries_;
    std::uint64_t put_ = 0;
    bool started_ = false, idle_ = false, ended_ = false;
    std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
};

}  // namespace emulated
