// Limits of a launch, and what the files about modules share.
#pragma once

#include "emulated.h"
#include "kernel.h"

#include <map>
#include <vector>

namespace emulated {

// The limits of compute capability 9.0, from "CUDA Programming Guide", Compute Capabilities,
// Technical Specifications.
constexpr int most_threads = 1024;                       // of a block
constexpr int most_block[] = {1024, 1024, 64};
constexpr int most_grid[] = {2147483647, 65535, 65535};
constexpr int most_shared = 48 << 10;                    // bytes of a block, unless asked for
constexpr int most_shared_on_request = 227 << 10;
constexpr int shared_of_multiprocessor = 228 << 10;
constexpr int threads_of_multiprocessor = 2048;
constexpr int blocks_of_multiprocessor = 32;
constexpr int multiprocessors = 132;                     // no rule: as many as some such devices

// images.cc: a shared library of kernels, closed when its last user lets go of it.
class Library {
public:
    explicit Library(void* handle, int file) : handle_(handle), file_(file) {}
    ~Library();
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;
    void* symbol(const std::string& name) const;

private:
    void* handle_;
    int file_;
};

// Load an image that lies in memory, or the bytes of a file; say on stderr why it cannot be.
CUresult load_image(const void* image, std::shared_ptr<Library>& library);
CUresult load_file(const char* path, std::shared_ptr<Library>& library);

// modules.cc

using Run = int (*)(const Launch*, void** arguments, const char** words);

struct Function {
    std::shared_ptr<Library> library;
    std::string name;
    int device;
    Run run;
    const Argument* arguments;
    int most_dynamic_shared = most_shared;
};

// Find the function of a handle; null for a handle that is none, or whose module is unloaded.
std::shared_ptr<Function> find_function(CUfunction handle);

}  // namespace emulated
