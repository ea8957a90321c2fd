// Who may touch memory of devices: their own work alone, between open_memory and close_memory.
//
// All of it is closed (PROT_NONE) at first.  Where work of a device touches it, the fault opens a
// part around the address; when no work of any device runs, all that was opened is closed again.
// So a look costs nothing for memory that is not touched, and host code that touches memory of a
// device faults, as it does beside a GPU.  A fault of a kernel outside of all memory of devices
// loses the device.  EMULATED_GUARD=0 leaves memory open.
#include "blocks.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace emulated {
namespace {

// The part of a large block that a fault opens, in bytes.
constexpr std::uintptr_t part = 2048 << 10;

struct Range {
    std::uintptr_t begin, end;
};

constexpr int signals[] = {SIGSEGV, SIGBUS};

struct Guard {
    std::mutex mutex;
    int threads = 0;             // that run work of devices
    std::vector<Range> opened;
    struct sigaction before[2];  // what was there before ours, in the order of `signals`
    bool gave_up = false;
};

// The handler must find these without allocating, hence the model.
#define ASYNC_SAFE __attribute__((tls_model("initial-exec")))
thread_local int depth ASYNC_SAFE = 0;
thread_local sigjmp_buf* escape ASYNC_SAFE = nullptr;
thread_local std::uintptr_t fault ASYNC_SAFE = 0;

Guard& guard() {
    static Guard& made = *new Guard;
    return made;
}

bool is_on() {
    static const bool on = [] {
        const char* value = std::getenv("EMULATED_GUARD");
        return !value || std::strcmp(value, "0");
    }();
    return on;
}

void protect(const Range& range, int protection) {
    mprotect(reinterpret_cast<void*>(range.begin), range.end - range.begin, protection);
}

// Open the part of a block around an address; false where it is in no memory of a device.
bool open_around(std::uintptr_t address) {
    Range pages;
    if (!find_pages(address, pages.begin, pages.end)) return false;
    const std::uintptr_t begin = address / part * part;
    const Range range{std::max(begin, pages.begin), std::min(begin + part, pages.end)};
    const std::lock_guard<std::mutex> hold(guard().mutex);
    protect(range, PROT_READ | PROT_WRITE);
    auto& opened = guard().opened;
    if (!opened.empty() && opened.back().end == range.begin) opened.back().end = range.end;
    else opened.push_back(range);
    return true;
}

void complain(std::uintptr_t address) {
    std::uintptr_t begin, end;
    if (!find_pages(address, begin, end)) return;
    char line[200];
    const int size = std::snprintf(line, sizeof line, "emulated: host code touched memory of a "
                                   "device at %#zx: %s\n", static_cast<std::size_t>(address),
                                   describe(address).c_str());
    if (write(STDERR_FILENO, line, static_cast<std::size_t>(size)) < 0) return;
}

// Put back what was there before: the instruction runs again, and faults into that.  A handler
// that then puts ours back, as Python's faulthandler does, gets the system's own.
void hand_over(int signal) {
    struct sigaction next;
    std::memset(&next, 0, sizeof next);
    next.sa_handler = SIG_DFL;
    if (!guard().gave_up) next = guard().before[signal == SIGBUS];
    guard().gave_up = true;
    sigaction(signal, &next, nullptr);
}

void on_fault(int signal, siginfo_t* info, void* context) {
    const int error = errno;
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const bool is_jump = static_cast<std::uintptr_t>(registers[REG_RIP]) == address;
    if (depth && !is_jump && open_around(address)) {
        errno = error;
        return;
    }
    if (escape) {
        fault = address;
        siglongjmp(*escape, 1);
    }
    complain(address);
    hand_over(signal);
}

// Handlers may come later than ours (pytest enables Python's faulthandler): look again each time.
void install() {
    const std::lock_guard<std::mutex> hold(guard().mutex);
    if (guard().gave_up) return;
    for (int which = 0; which < 2; ++which) {
        struct sigaction now;
        sigaction(signals[which], nullptr, &now);
        if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault) continue;
        guard().before[which] = now;
        std::memset(&now, 0, sizeof now);
        now.sa_sigaction = on_fault;
        now.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(signals[which], &now, nullptr);
    }
}

// A stack for handlers of this thread: a kernel may run on a stack that is too small for them.
class HandlerStack {
public:
    HandlerStack() : memory_(size) {
        stack_t now;
        sigaltstack(nullptr, &now);
        if (!(now.ss_flags & SS_DISABLE)) return;
        stack_t ours{memory_.data(), 0, size};
        sigaltstack(&ours, nullptr);
        is_ours_ = true;
    }
    ~HandlerStack() {
        stack_t none{nullptr, SS_DISABLE, 0};
        if (is_ours_) sigaltstack(&none, nullptr);
    }

private:
    static constexpr std::size_t size = 64 << 10;
    std::vector<char> memory_;
    bool is_ours_ = false;
};

}  // namespace

void open_memory() {
    if (depth++) return;
    static thread_local HandlerStack stack;
    install();
    const std::lock_guard<std::mutex> hold(guard().mutex);
    ++guard().threads;
}

void close_memory() {
    if (--depth) return;
    const std::lock_guard<std::mutex> hold(guard().mutex);
    if (--guard().threads) return;
    for (const Range& range : guard().opened) protect(range, PROT_NONE);
    guard().opened.clear();
}

int fresh_protection() {
    if (!is_on()) return PROT_READ | PROT_WRITE;
    install();
    return PROT_NONE;
}

void forget_pages(std::uintptr_t begin, std::uintptr_t end) {
    const std::lock_guard<std::mutex> hold(guard().mutex);
    auto& opened = guard().opened;
    const auto inside = [&](const Range& one) { return begin <= one.begin && one.end <= end; };
    opened.erase(std::remove_if(opened.begin(), opened.end(), inside), opened.end());
}

bool run_guarded(const char* what, const std::function<void()>& work) {
    sigjmp_buf here;
    if (sigsetjmp(here, 1)) {
        escape = nullptr;
        std::fprintf(stderr, "emulated: %s touched an illegal address, %#zx: %s\n", what,
                     static_cast<std::size_t>(fault), describe(fault).c_str());
        lose(cudaErrorIllegalAddress);
        return false;
    }
    escape = &here;
    work();
    escape = nullptr;
    return true;
}

}  // namespace emulated
