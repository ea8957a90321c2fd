// Reductions as NCCL's device code has them, in the order of the ranks.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace emulated_nccl {

// Return the bytes of an element; 0 for a type that there is not.
std::size_t size_of(ncclDataType_t type);

// Reduce element by element into `out`, which overlaps no input.
void reduce(ncclDataType_t type, ncclRedOp_t op, const std::vector<const char*>& inputs,
            std::size_t count, char* out);

}  // namespace emulated_nccl
