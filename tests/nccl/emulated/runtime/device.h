// What the files about devices share.
#pragma once

#include "emulated.h"

namespace emulated {

// properties.cc: an attribute of a device; cudaErrorInvalidValue for an id that is none.
cudaError_t attribute(int id, int device, int& value);
// device.cc: where a device sits, the same in every process.
constexpr int pci_domain = 0, pci_slot = 0;
constexpr int pci_bus(int device) { return device + 1; }
cudaUUID_t uuid(int device);
void set_current_device(int device);
// peers.cc: whether kernels of `device` may touch memory of `peer`.
bool may_touch(int device, int peer);

// contexts.cc: the primary context of a device, which is all that there is, and whether a thread
// has one.  Most functions of the runtime give the thread that of its current device.
void bind_context_for(const char* runtime_function);
bool has_context();

}  // namespace emulated
