// Calls that fail on purpose, devices that are lost or stopped, the last error of a thread.
//
// Rules from "CUDA Runtime API", Error Handling: cudaGetLastError resets the error of the calling
// thread, cudaErrorNotReady is no error, and errors of a lost context stay until the process ends.
#include "device.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <vector>

namespace emulated {
namespace {

// Besides the code of an error, a fault may be one of these.
constexpr int hang = -1;         // the call never returns
constexpr int stop = -2;         // the caller's device stops; the call itself goes on

struct Function {
    long calls = 0;
    long left = 0;               // calls until it fails; 0: never
    bool once = true;            // or each call from then on
    int code = 0;
    bool sticky = false;
};

struct Faults {
    std::mutex mutex;
    std::map<std::string, Function, std::less<>> functions;
    std::condition_variable answers;
    std::set<int> stopped;
};

[[noreturn]] void refuse(const char* variable, const std::string& item) {
    std::fprintf(stderr, "emulated: %s: '%s' is none of %sFUNCTION:NTH:CODE[:sticky], where CODE "
                 "is a number, 'hang' or 'stop'\n", variable, item.c_str(),
                 std::strcmp(variable, "EMULATED_FAULTS") ? "RANK:" : "");
    std::_Exit(2);
}

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::size_t begin = 0;
    for (;;) {
        const std::size_t end = text.find(separator, begin);
        parts.push_back(text.substr(begin, end - begin));
        if (end == std::string::npos) return parts;
        begin = end + 1;
    }
}

bool is_number(const std::string& text) {
    char* end = nullptr;
    std::strtol(text.c_str(), &end, 10);
    return !text.empty() && !*end;
}

// The rank of this process, as Open MPI or another launcher tells it; "" for none.
std::string rank() {
    for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
        if (const char* value = std::getenv(variable); value && *value) return value;
    return "";
}

void set(Function& function, long nth, int code, bool sticky) {
    function.left = std::labs(nth);
    function.once = nth > 0;
    function.code = code;
    function.sticky = sticky;
}

void read(Faults& faults, const char* variable, bool of_ranks) {
    const char* value = std::getenv(variable);
    if (!value || !*value) return;
    for (const std::string& item : split(value, ',')) {
        std::vector<std::string> parts = split(item, ':');
        if (of_ranks) {
            if (!is_number(parts.front())) refuse(variable, item);
            const bool mine = parts.front() == rank();
            parts.erase(parts.begin());
            if (!mine) continue;
        }
        if (parts.size() < 3 || parts.size() > 4 || !is_number(parts[1])) refuse(variable, item);
        if (parts.size() == 4 && parts[3] != "sticky") refuse(variable, item);
        const int code = parts[2] == "hang" ? hang : parts[2] == "stop" ? stop
                       : is_number(parts[2]) ? std::atoi(parts[2].c_str()) : 0;
        if (!code) refuse(variable, item);
        set(faults.functions[parts[0]], std::atol(parts[1].c_str()), code, parts.size() == 4);
    }
}

// Never destroyed: threads of streams may still call while the process ends.
Faults& faults() {
    static Faults& made = *[] {
        auto* fresh = new Faults;
        read(*fresh, "EMULATED_FAULTS", false);
        read(*fresh, "EMULATED_RANK_FAULTS", true);
        return fresh;
    }();
    return made;
}

struct Fault {
    int code = 0;
    bool sticky = false;
};

// Count a call, and carry out the fault that is due at it.
Fault counted(const char* name) {
    Fault due;
    {
        const std::lock_guard<std::mutex> hold(faults().mutex);
        auto& functions = faults().functions;
        auto found = functions.find(name);
        if (found == functions.end()) found = functions.emplace(name, Function()).first;
        Function& function = found->second;
        ++function.calls;
        if (function.left > 1) {
            --function.left;
        } else if (function.left == 1) {
            due = {function.code, function.sticky};
            if (function.once) function.left = 0;
        }
    }
    if (due.code == stop) {
        emulated_stop(current_device(), 1);
        return Fault();
    }
    while (due.code == hang) pause();
    return due;
}

std::atomic<int> sticky_error{cudaSuccess};
thread_local cudaError_t last_error = cudaSuccess;
std::atomic<long> live[kinds];

// The last error is the runtime's: functions of the driver (cuX, not cudaX) leave it alone.
bool is_of_runtime(const char* function) { return !std::strncmp(function, "cuda", 4); }

}  // namespace

cudaError_t begin(const char* function) {
    // A context does not survive a fork, and locks may be held for ever there.
    if (is_forked()) return cudaErrorInitializationError;
    // Versions can be asked before a fork that uses the device.
    if (!std::strstr(function, "GetVersion")) note_use();
    if (is_host_function()) return cudaErrorNotPermitted;
    const Fault fault = counted(function);
    if (is_of_runtime(function)) bind_context_for(function);
    if (fault.code && fault.sticky) lose(static_cast<cudaError_t>(fault.code));
    if (const cudaError_t error = lost()) return error;
    return static_cast<cudaError_t>(fault.code);
}

cudaError_t end(const char* function, cudaError_t error) {
    if (const cudaError_t sticky = lost()) error = sticky;
    return remember(function, error);
}

cudaError_t remember(const char* function, cudaError_t error) {
    if (error && error != cudaErrorNotReady && is_of_runtime(function)) last_error = error;
    return error;
}

void lose(cudaError_t error) {
    int none = cudaSuccess;
    sticky_error.compare_exchange_strong(none, error);  // the first one stays
}

cudaError_t lost() { return static_cast<cudaError_t>(sticky_error.load()); }

void wait_until_answering(int device) {
    std::unique_lock<std::mutex> hold(faults().mutex);
    faults().answers.wait(hold, [&] { return !faults().stopped.count(device); });
}

cudaError_t not_emulated(const char* what) {
    std::fprintf(stderr, "emulated: %s is not emulated\n", what);
    return cudaErrorNotSupported;
}

void count(Kind kind, long change) { live[kind] += change; }

}  // namespace emulated

using namespace emulated;

extern "C" {

cudaError_t cudaGetLastError(void) {
    if (const cudaError_t error = lost()) return error;
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    const cudaError_t error = lost();
    return error ? error : last_error;
}

int emulated_begin(const char* function) { return counted(function).code; }

void emulated_fail(const char* function, long nth, int code, int sticky) {
    const std::lock_guard<std::mutex> hold(faults().mutex);
    set(faults().functions[function], nth, code, sticky);
}

void emulated_lose(int code) { lose(static_cast<cudaError_t>(code)); }

void emulated_stop(int device, int stopped) {
    const std::lock_guard<std::mutex> hold(faults().mutex);
    if (stopped) faults().stopped.insert(device);
    else faults().stopped.erase(device);
    faults().answers.notify_all();
}

long emulated_calls(const char* function) {
    const std::lock_guard<std::mutex> hold(faults().mutex);
    const auto found = faults().functions.find(function);
    return found == faults().functions.end() ? 0 : found->second.calls;
}

long emulated_count(int kind) { return kind >= 0 && kind < kinds ? live[kind].load() : -1; }

}
