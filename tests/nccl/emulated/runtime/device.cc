// How many devices there are, which of them a thread uses, and where they sit.
//
// Rules from "CUDA Runtime API", Device Management.
#include "device.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulated {
namespace {

constexpr int most = 4;

int read_devices() {
    const char* value = std::getenv("EMULATED_DEVICES");
    if (!value) return 1;
    char* end = nullptr;
    const long found = std::strtol(value, &end, 10);
    if (end != value && !*end && found >= 1 && found <= most) return static_cast<int>(found);
    std::fprintf(stderr, "emulated: EMULATED_DEVICES is '%s', none of 1 to %d\n", value, most);
    std::_Exit(2);
}

thread_local int current = 0;

}  // namespace

int devices() {
    static const int count = read_devices();
    return count;
}

int current_device() { return current; }
void set_current_device(int device) { current = device; }
bool is_device(int index) { return index >= 0 && index < devices(); }

cudaUUID_t uuid(int device) {
    cudaUUID_t made;
    char text[sizeof made.bytes + 1];
    std::snprintf(text, sizeof text, "emulated dev %03d", device);
    std::memcpy(made.bytes, text, sizeof made.bytes);
    return made;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

int emulated_current_device(void) { return current_device(); }

cudaError_t cudaGetDeviceCount(int* count) {
    return call(__func__, [&]() -> cudaError_t {
        if (!count) return cudaErrorInvalidValue;
        *count = devices();
        return cudaSuccess;
    });
}

cudaError_t cudaGetDevice(int* device) {
    return call(__func__, [&]() -> cudaError_t {
        if (!device) return cudaErrorInvalidValue;
        *device = current_device();
        return cudaSuccess;
    });
}

cudaError_t cudaSetDevice(int device) {
    return call(__func__, [&]() -> cudaError_t {
        if (!is_device(device)) return cudaErrorInvalidDevice;
        set_current_device(device);
        return cudaSuccess;
    });
}

// The versions answer on a lost device too: they touch none.
cudaError_t cudaRuntimeGetVersion(int* version) {
    if (!version) return end(__func__, cudaErrorInvalidValue);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
    if (!version) return end(__func__, cudaErrorInvalidValue);
    *version = CUDA_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
    return call(__func__, [&]() -> cudaError_t {
        if (!text || size <= 0) return cudaErrorInvalidValue;
        if (!is_device(device)) return cudaErrorInvalidDevice;
        const int need = std::snprintf(text, static_cast<std::size_t>(size), "%04X:%02X:%02X.0",
                                       pci_domain, pci_bus(device), pci_slot);
        return need < size ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
    return call(__func__, [&]() -> cudaError_t {
        if (!device || !text) return cudaErrorInvalidValue;
        unsigned parts[3] = {};  // [domain:]bus:device[.function]
        const int found = std::sscanf(text, "%x:%x:%x", &parts[0], &parts[1], &parts[2]);
        if (found < 2) return cudaErrorInvalidValue;
        const unsigned bus = found == 3 ? parts[1] : parts[0];
        const unsigned slot = found == 3 ? parts[2] : parts[1];
        const unsigned domain = found == 3 ? parts[0] : pci_domain;
        for (int index = 0; index < devices(); ++index) {
            const bool here = bus == static_cast<unsigned>(pci_bus(index));
            if (!here || slot != pci_slot || domain != pci_domain) continue;
            *device = index;
            return cudaSuccess;
        }
        return cudaErrorInvalidDevice;
    });
}

}
