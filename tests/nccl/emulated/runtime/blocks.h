// What the files about memory share.
#pragma once

#include "emulated.h"

#include <mutex>

namespace emulated {

// memory.cc: the table of live memory

std::size_t memory_of_device();  // in bytes, EMULATED_MEMORY
std::size_t free_memory(int device);

// Map fresh memory, poisoned throughout; cudaErrorMemoryAllocation where the device has no more.
cudaError_t map_block(void** memory, std::size_t size, int device, Memory kind);
// Enter memory of the host's own, whole pages or not; AlreadyRegistered where some of it is.
cudaError_t register_block(void* memory, std::size_t size, int device);
// Find the live block that begins at a pointer.
bool find_beginning(const void* memory, Block& block);
// Let nobody find a block any more, though work that is queued may use it; false as below.
bool retire_block(const void* memory);
// Take a block off the table, and unmap what map_block has mapped; false if another was faster.
bool remove_block(const void* memory);
// Find the pages of the live block of device memory that has an address.
bool find_pages(std::uintptr_t address, std::uintptr_t& begin, std::uintptr_t& end);
// Tell whether some of [pointer, pointer + bytes) is in a live block or in the pages around it.
bool meets_any(const void* pointer, std::size_t bytes);
// Tell in words what an address is.
std::string describe(std::uintptr_t address);

// pools.cc: tell the pool that memory comes from, if any, that it is freed.
void leave_pool(const void* memory);

// guard.cc: who may touch memory of devices

// What fresh device memory is protected with.
int fresh_protection();
// Forget pages that are about to be unmapped.
void forget_pages(std::uintptr_t begin, std::uintptr_t end);
// Run `work` of a device; where it touches memory that is none, lose the device and return false.
bool run_guarded(const char* what, const std::function<void()>& work);

}  // namespace emulated
