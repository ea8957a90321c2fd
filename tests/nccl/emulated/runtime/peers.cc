// Which devices may touch each other's memory, and the limits of each.
//
// Rules from "CUDA Runtime API", Peer Device Memory Access, and cudaDeviceSetLimit.
#include "device.h"

#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace emulated {
namespace {

struct State {
    std::mutex mutex;
    std::set<std::pair<int, int>> peers;                  // a device, and one it may touch
    std::map<std::pair<int, cudaLimit>, std::size_t> limits;
};

State& state() {
    static State& made = *new State;
    return made;
}

// What a fresh device has; 0 for a limit that it lacks.  None of them bounds a kernel here.
std::size_t fresh_limit(cudaLimit limit) {
    switch (limit) {
        case cudaLimitStackSize: return 1024;
        case cudaLimitPrintfFifoSize: return 1 << 20;
        case cudaLimitMallocHeapSize: return 8 << 20;
        default: return 0;
    }
}

}  // namespace

bool may_touch(int device, int peer) {
    if (device == peer) return true;
    const std::lock_guard<std::mutex> hold(state().mutex);
    return state().peers.count({device, peer}) > 0;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    return call(__func__, [&]() -> cudaError_t {
        if (!can) return cudaErrorInvalidValue;
        if (!is_device(device) || !is_device(peer)) return cudaErrorInvalidDevice;
        *can = device != peer;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    return call(__func__, [&]() -> cudaError_t {
        if (flags) return cudaErrorInvalidValue;
        const int device = current_device();
        if (!is_device(peer) || peer == device) return cudaErrorInvalidDevice;
        const std::lock_guard<std::mutex> hold(state().mutex);
        const bool fresh = state().peers.insert({device, peer}).second;
        return fresh ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
    });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    return call(__func__, [&]() -> cudaError_t {
        if (!is_device(peer)) return cudaErrorInvalidDevice;
        const std::lock_guard<std::mutex> hold(state().mutex);
        const bool was = state().peers.erase({current_device(), peer}) > 0;
        return was ? cudaSuccess : cudaErrorPeerAccessNotEnabled;
    });
}

cudaError_t cudaDeviceGetLimit(std::size_t* value, cudaLimit limit) {
    return call(__func__, [&]() -> cudaError_t {
        if (!value) return cudaErrorInvalidValue;
        if (!fresh_limit(limit)) return cudaErrorUnsupportedLimit;
        const std::lock_guard<std::mutex> hold(state().mutex);
        const auto set = state().limits.find({current_device(), limit});
        *value = set == state().limits.end() ? fresh_limit(limit) : set->second;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, std::size_t value) {
    return call(__func__, [&]() -> cudaError_t {
        if (!fresh_limit(limit)) return cudaErrorUnsupportedLimit;
        const std::lock_guard<std::mutex> hold(state().mutex);
        state().limits[{current_device(), limit}] = value;
        return cudaSuccess;
    });
}

}
