// What a kernel that was compiled for the host offers to the runtime that launches it.
//
// The image of a module is the shared library itself.  For each kernel NAME it exports
//
//     extern "C" const emulated::Argument emulated_arguments_NAME[];   // ended by size 0
//     extern "C" int emulated_run_NAME(const emulated::Launch*, void** arguments,
//                                      const char** words);
//
// The second runs all threads before it returns.  It returns 0, or the error by which the device is
// lost (719 cudaErrorLaunchFailure, 710 cudaErrorAssert, 716 cudaErrorMisalignedAddress) with a
// sentence in `words`, which is valid until this thread's next launch.
#pragma once

namespace emulated {

struct Argument {
    unsigned size;               // in bytes
};

struct Launch {
    unsigned grid[3];            // in blocks
    unsigned block[3];           // in threads
    unsigned shared;             // bytes of dynamic shared memory
    unsigned long long first = 0;  // blocks before this one are not run; 0 but in tests
};

}  // namespace emulated
