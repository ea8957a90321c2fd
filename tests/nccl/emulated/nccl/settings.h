// What the environment says: variables of NCCL's own, and those of the emulation.
#pragma once

#include <cstdint>

namespace emulated_nccl {

// The version that is emulated, as a code such as 22809: EMULATED_NCCL_VERSION, or the header's.
int version();

// Seconds that a variable of the emulation says, or 0.
double seconds(const char* variable);

// A parameter of NCCL's.  NCCL reads each once in a process, where it first needs it.
long parameter(const char* variable, long otherwise);

// What two ranks of one host have in common: its name and boot, or NCCL_HOSTID; computed once.
std::uint64_t host_hash();

enum class Debug { none, version, warn, info };
Debug debug_level();

// EMULATED_NCCL_EXPLAIN=1: say on standard error why ranks hang.
bool explains();

}  // namespace emulated_nccl
