// Modules, their kernels, and what is asked of a kernel.
//
// Rules from "CUDA Driver API", Module Management and Execution Control: a module belongs to the
// context in which it is loaded, and its functions are invalid handles once it is unloaded.
#include "device.h"
#include "modules.h"

#include <algorithm>
#include <cstdio>
#include <mutex>

namespace emulated {
namespace {

struct Module {
    std::shared_ptr<Library> library;
    int device;
    std::map<std::string, std::shared_ptr<Function>> functions;
};

struct Table {
    std::mutex mutex;
    std::map<CUmodule, std::unique_ptr<Module>> modules;
    std::map<CUfunction, std::shared_ptr<Function>> functions;
};

Table& table() {
    static Table& made = *new Table;
    return made;
}

template <class Load>
CUresult load_module(CUmodule* handle, Load load) {
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (const cudaError_t error = unsafe_call()) return static_cast<CUresult>(error);
    auto module = std::make_unique<Module>();
    module->device = current_device();
    if (const CUresult error = load(module->library)) return error;
    *handle = reinterpret_cast<CUmodule>(module.get());
    const std::lock_guard<std::mutex> hold(table().mutex);
    table().modules.emplace(*handle, std::move(module));
    count(modules, 1);
    return CUDA_SUCCESS;
}

CUresult unload_module(CUmodule handle) {
    std::unique_ptr<Module> dropped;  // after the lock: it may close the library
    const std::lock_guard<std::mutex> hold(table().mutex);
    const auto found = table().modules.find(handle);
    if (found == table().modules.end()) return CUDA_ERROR_INVALID_HANDLE;
    dropped = std::move(found->second);
    table().modules.erase(found);
    for (const auto& [name, function] : dropped->functions)
        table().functions.erase(reinterpret_cast<CUfunction>(function.get()));
    count(modules, -1);
    return CUDA_SUCCESS;
}

std::shared_ptr<Function> make_function(const Module& module, const std::string& name) {
    const auto run = reinterpret_cast<Run>(module.library->symbol("emulated_run_" + name));
    const auto* arguments =
        static_cast<const Argument*>(module.library->symbol("emulated_arguments_" + name));
    if (!run || !arguments) return nullptr;
    return std::make_shared<Function>(
        Function{module.library, name, module.device, run, arguments});
}

CUresult get_function(CUfunction* handle, CUmodule owner, const char* name) {
    if (!handle || !name) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard<std::mutex> hold(table().mutex);
    const auto found = table().modules.find(owner);
    if (found == table().modules.end()) return CUDA_ERROR_INVALID_HANDLE;
    Module& module = *found->second;
    std::shared_ptr<Function>& function = module.functions[name];
    if (!function) function = make_function(module, name);
    if (!function) {
        module.functions.erase(name);
        return CUDA_ERROR_NOT_FOUND;
    }
    *handle = reinterpret_cast<CUfunction>(function.get());
    table().functions[*handle] = function;
    return CUDA_SUCCESS;
}

CUresult get_attribute(int* value, CUfunction_attribute id, const Function& function) {
    switch (id) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = most_threads; break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            *value = function.most_dynamic_shared;
            break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = -1; break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; break;
        // Code for the host has none of these.
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
        case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        case CU_FUNC_ATTRIBUTE_NUM_REGS:
        case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult set_attribute(Function& function, CUfunction_attribute id, int value) {
    switch (id) {
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            if (value < 0 || value > most_shared_on_request) return CUDA_ERROR_INVALID_VALUE;
            function.most_dynamic_shared = value;
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:  // a hint
            return value >= -1 && value <= 100 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

int blocks_at_once(int threads, std::size_t shared) {
    const int by_threads = threads_of_multiprocessor / threads;
    const std::size_t need = shared + 1024;  // the device keeps 1 KiB of each block
    const auto by_shared = static_cast<int>(shared_of_multiprocessor / need);
    return std::min({by_threads, blocks_of_multiprocessor, by_shared});
}

template <class Body>
CUresult answer(const char* function, Body body) {
    return driver_call(function, [&] { return static_cast<cudaError_t>(body()); });
}

template <class Body>
CUresult of_function(const char* function, CUfunction handle, Body body) {
    return answer(function, [&]() -> CUresult {
        const std::shared_ptr<Function> found = find_function(handle);
        return found ? body(*found) : CUDA_ERROR_INVALID_HANDLE;
    });
}

}  // namespace

std::shared_ptr<Function> find_function(CUfunction handle) {
    const std::lock_guard<std::mutex> hold(table().mutex);
    const auto found = table().functions.find(handle);
    return found == table().functions.end() ? nullptr : found->second;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    return answer(__func__, [&] {
        return load_module(module, [&](auto& library) { return load_image(image, library); });
    });
}

CUresult cuModuleLoad(CUmodule* module, const char* path) {
    return answer(__func__, [&] {
        return load_module(module, [&](auto& library) { return load_file(path, library); });
    });
}

CUresult cuModuleUnload(CUmodule module) {
    return answer(__func__, [&] { return unload_module(module); });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    return answer(__func__, [&] { return get_function(function, module, name); });
}

// A variable of a kernel is memory of the host here, which no copy to a device would reach.
CUresult cuModuleGetGlobal(CUdeviceptr*, std::size_t*, CUmodule, const char* name) {
    return answer(__func__, [&] {
        std::fprintf(stderr, "emulated: %s is not emulated (of the variable '%s')\n",
                     "cuModuleGetGlobal", name ? name : "");
        return CUDA_ERROR_NOT_SUPPORTED;
    });
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute id, CUfunction handle) {
    return of_function(__func__, handle, [&](const Function& function) {
        return value ? get_attribute(value, id, function) : CUDA_ERROR_INVALID_VALUE;
    });
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute id, int value) {
    return of_function(__func__, handle, [&](Function& function) {
        return set_attribute(function, id, value);
    });
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction handle, int threads,
                                                     std::size_t shared) {
    return of_function(__func__, handle, [&](const Function&) {
        if (!blocks || threads < 1) return CUDA_ERROR_INVALID_VALUE;
        *blocks = threads > most_threads ? 0 : blocks_at_once(threads, shared);
        return CUDA_SUCCESS;
    });
}

CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction handle,
                                          CUoccupancyB2DSize shared_of, std::size_t shared,
                                          int limit) {
    return of_function(__func__, handle, [&](const Function&) {
        if (!grid || !block || limit < 0) return CUDA_ERROR_INVALID_VALUE;
        *block = limit ? std::min(limit, most_threads) : most_threads;
        *grid = multiprocessors * blocks_at_once(*block, shared_of ? shared_of(*block) : shared);
        return CUDA_SUCCESS;
    });
}

}
