// Groups of calls: nothing of them begins before the outermost end.
#pragma once

#include "communicator.h"
#include "operation.h"

#include <functional>

namespace emulated_nccl {

// What a call does that needs other ranks' hosts: one of these blocks, several run side by side.
struct Task {
    CommunicatorPtr comm;
    std::function<ncclResult_t()> run;
    bool is_end;  // destroys or aborts: always done before the call returns
};

// All operations that a group has of one communicator.
struct Plan {
    CommunicatorPtr comm;
    std::vector<Operation> operations;
    std::vector<cudaStream_t> streams;  // each once
    unsigned long long capture = 0;     // that has the streams; 0 for none
};

void enter_group();
// Leave a group; the outermost does all that it has.
ncclResult_t leave_group();
// Leave it, and forget what it has.
ncclResult_t drop_group();
// Spoil the group by a call that failed; return its result.
ncclResult_t spoil(ncclResult_t result);

// Add what the end of the group will do.
ncclResult_t add_task(Task task);
ncclResult_t add_operation(const CommunicatorPtr& comm, Operation operation, cudaStream_t stream);

// Make a call of its own a group.
template <class Body>
ncclResult_t in_group(Body body) {
    enter_group();
    const ncclResult_t result = spoil(body());
    const ncclResult_t ended = leave_group();
    return ended == ncclSuccess || ended == ncclInProgress ? result : ended;
}

}  // namespace emulated_nccl
