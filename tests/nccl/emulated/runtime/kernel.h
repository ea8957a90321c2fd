// What a kernel that was compiled for the host offers to the runtime that launches it.
//
// The image of a module is the shared library itself.  For each kernel NAME it exports
//
//     extern "C" const emulated::Argument emulated_arguments_NAME[];   // ended by size 0
//     extern "C" void emulated_run_NAME(const emulated::Launch*, void** arguments);
//
// and optionally  extern "C" const int emulated_cannot_NAME  with  emulated_why_NAME, a sentence.
#pragma once

namespace emulated {

struct Argument {
    unsigned size;               // in bytes
};

struct Launch {
    unsigned grid[3];            // in blocks
    unsigned block[3];           // in threads
    unsigned shared;             // bytes of dynamic shared memory
};

}  // namespace emulated
