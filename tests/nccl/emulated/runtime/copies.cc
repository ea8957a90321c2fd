// Copies and fills, and when they are done as the host sees it.
//
// Rules from "CUDA Runtime API", API synchronization behavior: memory of the host that is not
// pinned is staged before the call returns, a copy into such memory has arrived when it returns,
// a copy from host to host too; all others of an Async function are asynchronous.  Copies without
// Async run on the legacy stream, and only those between devices do not wait.
#include "blocks.h"

#include <cstring>
#include <memory>
#include <vector>

namespace emulated {
namespace {

// Rows of `width` bytes, each `pitch` bytes after the one before it.
struct Rows {
    char* begin;
    std::size_t pitch, width, height;

    bool is_whole() const { return pitch == width || height == 1; }
    std::size_t extent() const { return (height - 1) * pitch + width; }
    char* row(std::size_t number) const { return begin + number * pitch; }
};

enum class Side { pageable, pinned, managed, device };

// Tell what memory the rows are in; false where they are in more than one.
bool side_of(const Rows& rows, Side& side) {
    Block block;
    if (find(rows.begin, rows.extent(), block)) {
        side = block.kind == Memory::device ? Side::device
             : block.kind == Memory::managed ? Side::managed : Side::pinned;
        return true;
    }
    side = Side::pageable;
    return !meets_any(rows.begin, rows.extent());
}

bool allows(cudaMemcpyKind kind, Side to, Side from) {
    const bool to_host = to != Side::device, from_host = from != Side::device;
    const bool to_device = to != Side::pageable, from_device = from != Side::pageable;
    switch (kind) {
        case cudaMemcpyHostToHost: return to_host && from_host;
        case cudaMemcpyHostToDevice: return to_device && from_host;
        case cudaMemcpyDeviceToHost: return to_host && from_device;
        case cudaMemcpyDeviceToDevice: return to_device && from_device;
        default: return true;
    }
}

bool is_kind(cudaMemcpyKind kind) {
    return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
}

bool is_of_host(Side side) { return side == Side::pageable || side == Side::pinned; }

void copy_rows(const Rows& to, const Rows& from) {
    if (to.is_whole() && from.is_whole()) {
        std::memmove(to.begin, from.begin, from.width * from.height);
        return;
    }
    for (std::size_t row = 0; row < from.height; ++row)
        std::memmove(to.row(row), from.row(row), from.width);
}

cudaError_t enqueue_guarded(cudaStream_t stream, const char* what, Job job) {
    return enqueue(stream, [what, job = std::move(job)] { run_guarded(what, job); });
}

cudaError_t enqueue_copy(cudaStream_t stream, const Rows& to, const Rows& from) {
    return enqueue_guarded(stream, "a copy", [to, from] { copy_rows(to, from); });
}

// Take the rows away at once, and copy from there in the order of the stream.
cudaError_t enqueue_staged(cudaStream_t stream, const Rows& to, const Rows& from) {
    const auto staged = std::make_shared<std::vector<char>>(from.width * from.height);
    const Rows there{staged->data(), from.width, from.width, from.height};
    copy_rows(there, from);
    return enqueue_guarded(stream, "a copy", [to, there, staged] { copy_rows(to, there); });
}

struct Sides {
    Side to, from;
};

cudaError_t check(const Rows& to, const Rows& from, cudaMemcpyKind kind, Sides& sides) {
    if (!is_kind(kind)) return cudaErrorInvalidMemcpyDirection;
    if (to.width > to.pitch || from.width > from.pitch) return cudaErrorInvalidPitchValue;
    if (!to.begin || !from.begin) return cudaErrorInvalidValue;
    if (!side_of(to, sides.to) || !side_of(from, sides.from)) return cudaErrorInvalidValue;
    return allows(kind, sides.to, sides.from) ? cudaSuccess : cudaErrorInvalidValue;
}

bool is_empty(const Rows& rows) { return !rows.width || !rows.height; }

cudaError_t copy_async(const Rows& to, const Rows& from, cudaMemcpyKind kind,
                       cudaStream_t stream) {
    if (is_empty(from)) return device_of(stream) < 0 ? cudaErrorInvalidResourceHandle : cudaSuccess;
    Sides sides;
    if (const cudaError_t error = check(to, from, kind, sides)) return error;
    // A graph reads and writes memory of the host when it runs.
    if (is_captured(stream)) return enqueue_copy(stream, to, from);
    const bool within_host = is_of_host(sides.to) && is_of_host(sides.from);
    if (sides.from == Side::pageable && !within_host) return enqueue_staged(stream, to, from);
    if (const cudaError_t error = enqueue_copy(stream, to, from)) return error;
    return sides.to == Side::pageable || within_host ? synchronize(stream) : cudaSuccess;
}

cudaError_t copy(const Rows& to, const Rows& from, cudaMemcpyKind kind) {
    if (is_empty(from)) return cudaSuccess;
    Sides sides;
    if (const cudaError_t error = check(to, from, kind, sides)) return error;
    if (const cudaError_t error = unsafe_synchronous_call()) return error;
    if (sides.from == Side::pageable && !is_of_host(sides.to)) {
        if (const cudaError_t error = synchronize(nullptr)) return error;
        return enqueue_staged(nullptr, to, from);
    }
    if (const cudaError_t error = enqueue_copy(nullptr, to, from)) return error;
    const bool within_devices = sides.to == Side::device && sides.from == Side::device;
    return within_devices ? cudaSuccess : synchronize(nullptr);
}

Rows line(const void* begin, std::size_t bytes) {
    return {static_cast<char*>(const_cast<void*>(begin)), bytes, bytes, 1};
}

Rows rows(const void* begin, std::size_t pitch, std::size_t width, std::size_t height) {
    return {static_cast<char*>(const_cast<void*>(begin)), pitch, width, height};
}

// Check the devices of a copy between two: memory of a device must be that of the one named.
cudaError_t check_peers(const Rows& to, int to_device, const Rows& from, int from_device) {
    if (!is_device(to_device) || !is_device(from_device)) return cudaErrorInvalidDevice;
    Block at_to, at_from;
    const bool found = find(to.begin, to.width, at_to) && find(from.begin, from.width, at_from);
    if (!found || at_to.kind != Memory::device || at_from.kind != Memory::device)
        return cudaErrorInvalidValue;
    const bool match = at_to.device == to_device && at_from.device == from_device;
    return match ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t fill_async(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
    if (!bytes) return device_of(stream) < 0 ? cudaErrorInvalidResourceHandle : cudaSuccess;
    Block block;
    if (!find(memory, bytes, block)) return cudaErrorInvalidValue;
    return enqueue_guarded(stream, "a fill", [=] { std::memset(memory, value, bytes); });
}

cudaError_t fill(void* memory, int value, std::size_t bytes) {
    if (const cudaError_t error = unsafe_synchronous_call()) return error;
    if (const cudaError_t error = fill_async(memory, value, bytes, nullptr)) return error;
    Block block;
    const bool on_device = find(memory, bytes, block) && block.kind == Memory::device;
    return on_device || !bytes ? cudaSuccess : synchronize(nullptr);
}

}  // namespace
}  // namespace emulated

using namespace emulated;

extern "C" {

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    return call(__func__, [&] { return copy(line(to, bytes), line(from, bytes), kind); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return call(__func__,
                [&] { return copy_async(line(to, bytes), line(from, bytes), kind, stream); });
}

cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                         std::size_t width, std::size_t height, cudaMemcpyKind kind) {
    return call(__func__, [&] {
        return copy(rows(to, to_pitch, width, height), rows(from, from_pitch, width, height), kind);
    });
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
    return call(__func__, [&] {
        return copy_async(rows(to, to_pitch, width, height),
                          rows(from, from_pitch, width, height), kind, stream);
    });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                std::size_t bytes, cudaStream_t stream) {
    return call(__func__, [&]() -> cudaError_t {
        const Rows there = line(to, bytes), here = line(from, bytes);
        if (is_empty(here)) return copy_async(there, here, cudaMemcpyDefault, stream);
        if (const cudaError_t error = check_peers(there, to_device, here, from_device))
            return error;
        return enqueue_copy(stream, there, here);
    });
}

// It waits for all earlier work of both devices and the current one, and all later work for it.
cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device,
                           std::size_t bytes) {
    return call(__func__, [&]() -> cudaError_t {
        if (!bytes) return cudaSuccess;
        const Rows there = line(to, bytes), here = line(from, bytes);
        if (const cudaError_t error = check_peers(there, to_device, here, from_device))
            return error;
        if (const cudaError_t error = unsafe_synchronous_call()) return error;
        for (const int device : {to_device, from_device}) synchronize_device(device);
        if (const cudaError_t error = enqueue_copy(nullptr, there, here)) return error;
        return synchronize(nullptr);
    });
}

cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
    return call(__func__, [&] { return fill(memory, value, bytes); });
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
    return call(__func__, [&] { return fill_async(memory, value, bytes, stream); });
}

}
