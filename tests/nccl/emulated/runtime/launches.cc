// Launches of kernels.
//
// Rules from "CUDA Driver API", cuLaunchKernel; from "CUDA Programming Guide", Stream and Event
// Behavior: a launch fails on a stream of another device than the current one.
#include "blocks.h"
#include "device.h"
#include "modules.h"

#include <cstdio>

namespace emulated {
namespace {

// The arguments of a launch, as they were at the call.
class Arguments {
public:
    Arguments(const Argument* sizes, void** values) {
        for (std::size_t i = 0; sizes[i].size; ++i) {
            const char* begin = static_cast<const char*>(values[i]);
            bytes_.emplace_back(begin, begin + sizes[i].size);
        }
    }
    std::vector<void*> pointers() {
        std::vector<void*> pointers;
        for (std::vector<char>& argument : bytes_) pointers.push_back(argument.data());
        return pointers;
    }

private:
    std::vector<std::vector<char>> bytes_;
};

bool is_allowed(const Launch& launch, const Function& function) {
    unsigned threads = 1;
    for (int axis = 0; axis < 3; ++axis) {
        const unsigned grid = launch.grid[axis], block = launch.block[axis];
        if (!grid || grid > static_cast<unsigned>(most_grid[axis])) return false;
        if (!block || block > static_cast<unsigned>(most_block[axis])) return false;
        threads *= block;
    }
    return threads <= most_threads
           && launch.shared <= static_cast<unsigned>(function.most_dynamic_shared);
}


// Run all threads of a launch; where the kernel fails, the device is lost.
void run(const Function& function, const Launch& launch, Arguments& arguments) {
    std::vector<void*> pointers = arguments.pointers();
    int error = 0;
    const char* words = "";
    run_guarded(("kernel " + function.name).c_str(),
                [&] { error = function.run(&launch, pointers.data(), &words); });
    if (!error) return;
    std::fprintf(stderr, "emulated: %s\n", words);
    lose(static_cast<cudaError_t>(error));
}

cudaError_t launch_kernel(CUfunction handle, const Launch& launch, CUstream stream, void** values,
                          void** extra) {
    if (!has_context()) return cudaErrorDeviceUninitialized;
    const std::shared_ptr<Function> function = find_function(handle);
    if (!function) return cudaErrorInvalidResourceHandle;
    if (extra) {
        std::fprintf(stderr, "emulated: arguments of a launch in 'extra' are not emulated\n");
        return cudaErrorNotSupported;
    }
    const int device = device_of(stream);
    const bool here = device == current_device() && device == function->device;
    if (!here) return cudaErrorInvalidResourceHandle;
    if (!is_allowed(launch, *function)) return cudaErrorInvalidValue;
    if (!values && function->arguments->size) return cudaErrorInvalidValue;
    const auto arguments = std::make_shared<Arguments>(function->arguments, values);
    return enqueue(stream, [=] { run(*function, launch, *arguments); });
}

}  // namespace
}  // namespace emulated

using namespace emulated;

extern "C" {

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CUstream stream, void** arguments, void** extra) {
    return driver_launch_call(__func__, [&] {
        const Launch launch{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared};
        return launch_kernel(function, launch, stream, arguments, extra);
    });
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments,
                          void** extra) {
    return driver_launch_call(__func__, [&]() -> cudaError_t {
        if (!config) return cudaErrorInvalidValue;
        if (config->numAttrs) {
            std::fprintf(stderr, "emulated: attributes of cuLaunchKernelEx are not emulated\n");
            return cudaErrorNotSupported;
        }
        const CUlaunchConfig& c = *config;
        const Launch launch{{c.gridDimX, c.gridDimY, c.gridDimZ},
                            {c.blockDimX, c.blockDimY, c.blockDimZ}, c.sharedMemBytes};
        return launch_kernel(function, launch, c.hStream, arguments, extra);
    });
}

}
