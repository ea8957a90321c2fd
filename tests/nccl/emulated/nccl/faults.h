// Ranks that fail, are slow, hang or die, because a test asks for it.
#pragma once

#include <nccl.h>

#include <atomic>
#include <string>
#include <vector>

namespace emulated_nccl {

// What one call does: in the call itself, or in its job on the stream.
struct Fault {
    enum What { fail, slow, hang, die, asynchronous } what;
    bool in_job;
    ncclResult_t code;
    double seconds;
};

// What a function of NCCL's does first: it counts, it fails where the emulated version does not
// have it (`since` is the first that has), and it does what tests ask for.
class Call {
public:
    // `aborted`, if given, ends a call that hangs.
    Call(const char* function, int rank, int since = 0,
         const std::atomic<bool>* aborted = nullptr);
    ncclResult_t result = ncclSuccess;
    // What is left for its job, or for ncclCommGetAsyncError.
    std::vector<Fault> left;
};

// Do what tests ask of a job; it hangs until `aborted`.
void suffer(const std::vector<Fault>& faults, const std::atomic<bool>& aborted);

// Wait some seconds, or until `aborted`.
void pause_for(double seconds, const std::atomic<bool>* aborted);

}  // namespace emulated_nccl
