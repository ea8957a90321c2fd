// Operations on streams.
#pragma once

#include "group.h"

namespace emulated_nccl {

// Put all operations of a plan on their streams, as one job behind the others of its communicator.
ncclResult_t launch(Plan& plan);

// Connect the hosts of ranks whose communicator, or whose pair, has its first operation here.
// They wait for each other; false when the communicator is aborted meanwhile.
bool connect_ranks(Plan& plan);

// Wait until all jobs have run that are on streams.
void wait_for_jobs(Communicator& comm);
// Wait until all graphs with jobs are gone, as NCCL does before it frees what they use.
void wait_for_graphs(Communicator& comm);

// Make a device the current one of this thread for a while.
class OnDevice {
public:
    explicit OnDevice(int device);
    ~OnDevice();
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;
    // Go back to the device of before, and return the error of that, which the destructor drops.
    ncclResult_t leave();
    ncclResult_t result;

private:
    int before_;
};

}  // namespace emulated_nccl
