// The two functions of the CUDA Runtime API, Profiler Control, whose header is in none of the
// wheels that the others are taken from.
#pragma once

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);

#ifdef __cplusplus
}
#endif
