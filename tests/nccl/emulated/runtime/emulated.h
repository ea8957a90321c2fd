// What the parts of the emulated CUDA runtime offer each other.
//
// Each function of CUDA's interface is written as
//
//     cudaError_t cudaFree(void* memory) {
//         return call(__func__, [&]() -> cudaError_t { ... });
//     }
//
// so that every one of them counts, fails where a test asks for it, and remembers its error.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace emulated {

// faults.cc: calls that fail on purpose, devices that are lost, the last error of a thread.

// Count a call of `function`; return the error that a test has asked for, or that of a lost device.
cudaError_t begin(const char* function);
// Remember the last error of this thread; cudaErrorNotReady is none.  Return it, or the sticky one.
cudaError_t end(const char* function, cudaError_t error);
// Remember the last error of this thread alone.
cudaError_t remember(const char* function, cudaError_t error);
// Make `error` the answer of every later call: the context is lost, as after an illegal address.
void lose(cudaError_t error);
// Return the sticky error, or cudaSuccess.
cudaError_t lost();
// Return when a job may run: never, on a device that a test has stopped.
void wait_until_answering(int device);
// Say on stderr that something is not emulated; return cudaErrorNotSupported.
cudaError_t not_emulated(const char* what);

template <class Body>
cudaError_t call(const char* function, Body body) {
    if (const cudaError_t error = begin(function)) return end(function, error);
    return end(function, body());
}

template <class Body>
CUresult driver_call(const char* function, Body body) {
    return static_cast<CUresult>(call(function, body));
}

// The same for calls that launch kernels: what fails in these, later calls tell ("this function may
// also return error codes from previous, asynchronous launches").
template <class Body>
cudaError_t launch_call(const char* function, Body body) {
    if (const cudaError_t error = begin(function)) return end(function, error);
    return remember(function, body());
}

template <class Body>
CUresult driver_launch_call(const char* function, Body body) {
    return static_cast<CUresult>(launch_call(function, body));
}

// device.cc

int devices();                   // how many there are, 1 to 4
int current_device();            // of the calling thread
bool is_device(int index);

// memory.cc

enum class Memory { device, pinned, registered, managed };

struct Block {
    std::uintptr_t begin;
    std::size_t size;            // in bytes, as it was asked for
    int device;
    Memory kind;
};

// Find the live block that has all of [pointer, pointer + bytes).
bool find(const void* pointer, std::size_t bytes, Block& block);
bool is_on_device(const void* pointer, std::size_t bytes);
// A thread can touch memory of devices between these two alone; they nest.
void open_memory();
void close_memory();

// streams.cc

using Job = std::function<void()>;

// Put a job behind all that the stream has, or into the graph that is captured from it.
cudaError_t enqueue(cudaStream_t stream, Job job);
// Wait until all that the stream (or the current device) had at the call has run.
cudaError_t synchronize(cudaStream_t stream);
void synchronize_device(int device);
// Tell the device of a stream; -1 for a handle that is none.
int device_of(cudaStream_t stream);
bool is_captured(cudaStream_t stream);
// Tell whether this thread runs a function of the user's: CUDA may not be called there.
bool is_host_function();
// Tell whether this process is a fork of one that used the device: it has none of its threads.
bool is_forked();
void note_use();

// capture.cc

// Return the error of a call that a capture forbids (an allocation, a wait), after spoiling it.
cudaError_t unsafe_call();
// The same of a call that works on the legacy stream of the current device and waits for it.
cudaError_t unsafe_synchronous_call();

// Live things, by kind, for tests that look for leaks.
enum Kind { streams, events, graphs, graph_execs, captures, device_blocks, device_bytes,
            pinned_blocks, pinned_bytes, modules, threads, kinds };
void count(Kind kind, long change);

}  // namespace emulated

// For libnccl, for kernels and for tests through ctypes.
extern "C" {

// Run `job(data)` in the stream's order, or in each run of the graph that is captured from it;
// `release(data)`, if given, is called once it can run no more.
int emulated_enqueue(cudaStream_t stream, void (*job)(void*), void* data, void (*release)(void*));
// Tell the device of a stream; -1 for a handle that is none.
int emulated_stream_device(cudaStream_t stream);
// Tell the device whose live memory has all of [pointer, pointer + bytes); -1 when none has.
int emulated_memory_device(const void* pointer, std::size_t bytes);
int emulated_current_device(void);
// Count a call of `function`; return the code with which a test wants it to fail, or 0.
int emulated_begin(const char* function);
// Let the nth call of `function` from now fail with `code`; `sticky`: the device is lost by it.
// nth == 0 takes it back; nth < 0: each call from the -nth on fails.  Code -1: the call never
// returns; -2: the calling thread's device stops, and the call goes on.
void emulated_fail(const char* function, long nth, int code, int sticky);
// Lose the context by an error, as a kernel does that reads an illegal address.
void emulated_lose(int code);
// Let nothing more run on a device, or run again.
void emulated_stop(int device, int stopped);
// Return how many calls of `function` there were.
long emulated_calls(const char* function);
// Return how many things of a kind are alive.
long emulated_count(int kind);

}
