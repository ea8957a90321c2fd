// What is done around each piece of work of a device.
#include "streams.h"

#include <utility>

namespace emulated {

namespace {

thread_local bool in_function = false;

}  // namespace

bool is_host_function() {
    return in_function;
}

void on_host(const Job& job) {
    in_function = true;
    job();
    in_function = false;
}

Job quiet_work(int device, Job job) {
    return [device, job = std::move(job)] {
        wait_until_answering(device);
        if (!lost()) job();
    };
}

Job device_work(int device, Job job) {
    return quiet_work(device, [job = std::move(job)] {
        open_memory();
        job();
        close_memory();
    });
}

Job host_work(int device, Job job) {
    return quiet_work(device, [job = std::move(job)] { on_host(job); });
}

Job callback_work(int device, Job job) {
    return [device, job = std::move(job)] {
        if (!lost()) wait_until_answering(device);
        on_host(job);
    };
}

}  // namespace emulated
