#include "errors.h"

#include "settings.h"

#include "emulated.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>

namespace emulated_nccl {

namespace {

struct Text {
    char text[1024];
};

struct LastError {
    std::mutex mutex;
    Text text{};
};

// One for the process, as NCCL's: "Returns a human-readable message of the last error" (nccl.h).
LastError& last_error() {
    static LastError& made = *new LastError;
    return made;
}

Text formatted(const char* format, va_list arguments) {
    Text made;
    std::vsnprintf(made.text, sizeof made.text, format, arguments);
    return made;
}

// NCCL prints on standard output, with host, process, thread and device.
void print(const char* level, const Text& text) {
    char host[256] = "?";
    gethostname(host, sizeof host - 1);
    std::printf("%s:%d:%ld [%d] emulated NCCL %s %s\n", host, getpid(), syscall(SYS_gettid),
                emulated_current_device(), level, text.text);
    std::fflush(stdout);
}

}  // namespace

ncclResult_t warn(ncclResult_t result, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const Text text = formatted(format, arguments);
    va_end(arguments);
    {
        const std::lock_guard<std::mutex> guard(last_error().mutex);
        last_error().text = text;
    }
    if (debug_level() >= Debug::warn) print("WARN", text);
    return result;
}

void info(const char* format, ...) {
    if (debug_level() < Debug::info) return;
    va_list arguments;
    va_start(arguments, format);
    print("INFO", formatted(format, arguments));
    va_end(arguments);
}

void complain(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::fprintf(stderr, "emulated NCCL: %s\n", formatted(format, arguments).text);
    va_end(arguments);
    std::fflush(stderr);
}

void announce() {
    static const bool is_done = [] {
        if (debug_level() == Debug::none) return true;
        std::printf("emulated NCCL version %d.%d.%d: it is not NCCL, and there is no GPU\n",
                    version() / 10000, version() / 100 % 100, version() % 100);
        std::fflush(stdout);
        return true;
    }();
    static_cast<void>(is_done);
}

ncclResult_t cuda_result(int error) {
    if (!error) return ncclSuccess;
    const char* text = cudaGetErrorString(static_cast<cudaError_t>(error));
    return warn(ncclUnhandledCudaError, "Cuda failure %d '%s'", error, text);
}

ncclResult_t refuse(const char* what) {
    complain("%s is not emulated", what);
    return warn(ncclInvalidUsage, "%s is not emulated", what);
}

}  // namespace emulated_nccl

using namespace emulated_nccl;

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
    switch (static_cast<int>(result)) {
        case 0: return "no error";
        case 1: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
        case 2: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
        case 3: return "internal error - please report this issue to the NCCL developers";
        case 4: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
        case 5: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
        case 6: return "remote process exited or there was a network error";
        case 7: return "NCCL operation in progress";
        default: return "unknown result code";
    }
}

const char* ncclGetLastError(ncclComm_t) {
    static thread_local Text shown;
    const std::lock_guard<std::mutex> guard(last_error().mutex);
    shown = last_error().text;
    return shown.text;
}

}
