// The configuration of a communicator.
#pragma once

#include <nccl.h>

namespace emulated_nccl {

// Check a configuration, which may be a shorter one of an older version, and tell whether the
// communicator blocks; null is the default one, or that of `parent`.
ncclResult_t read_config(const ncclConfig_t* config, bool& blocking, bool parent = true);

}  // namespace emulated_nccl
