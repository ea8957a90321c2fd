// What takes the place of NCCL's kernels: data between ranks through the memory that they share.
#pragma once

#include "communicator.h"
#include "operation.h"

namespace emulated_nccl {

// Do a collective with all ranks; false when the communicator is aborted meanwhile.
bool collective(Communicator& comm, const Operation& operation);

// Do all messages of a group at once; those between two ranks in one direction in their order.
bool exchange_messages(Communicator& comm, const std::vector<Operation>& messages);

}  // namespace emulated_nccl
