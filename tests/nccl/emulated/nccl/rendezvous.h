// How ranks find each other: by a socket of the process that made the unique id.
#pragma once

#include "communicator.h"

namespace emulated_nccl {

// Make an id whose socket a thread serves until all ranks of one communicator have come.
ncclResult_t make_identity(ncclUniqueId& id);

// Meet the other ranks as `rank` of `size`, and set what that gives; blocks until all have come,
// or the communicator is aborted.
ncclResult_t join(Communicator& comm, const ncclUniqueId& id, int size, int rank);

}  // namespace emulated_nccl
