// The text of the last error, and the lines that NCCL_DEBUG asks for.
#pragma once

#include <nccl.h>

namespace emulated_nccl {

// Keep a text as the last error, and print it where NCCL_DEBUG is WARN or more; return `result`.
ncclResult_t warn(ncclResult_t result, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

// Print a line where NCCL_DEBUG is INFO or more.
void info(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Print the version, once in a process, where NCCL_DEBUG is VERSION or more.
void announce();

// Print a line on standard error in any case: NCCL might crash here.
void complain(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Return the result of a call of CUDA's, with its text as the last error where it failed.
ncclResult_t cuda_result(int error);

// Refuse what NCCL has and the emulation has not.
ncclResult_t refuse(const char* what);

}  // namespace emulated_nccl
