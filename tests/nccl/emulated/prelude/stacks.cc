// A context makes a stack begin; _setjmp and _longjmp change between stacks that have begun, for
// they need no call of the system.
#include "stacks.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace emulated {
namespace {

constexpr std::size_t stack_bytes = 128 << 10;

// The stack that begins, for a context's function can take no pointer.
thread_local void* beginning;
thread_local Stacks* owner;

}  // namespace

struct Stacks::Stack {
    Stack() {
        const auto page = static_cast<std::size_t>(getpagesize());
        bytes = stack_bytes + page;
        memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        // Stacks grow down: into a page that nobody may touch.
        if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE)) {
            std::perror("emulated: no memory for the stack of a kernel's thread");
            std::abort();
        }
    }
    ~Stack() { munmap(memory, bytes); }
    Stack(const Stack&) = delete;
    Stack& operator=(const Stack&) = delete;

    void* memory;
    std::size_t bytes;
    bool begun = false;
    std::jmp_buf next;           // it runs the body again there
};

Stacks::Stacks(void (*body)(void*), void* argument) : body_(body), argument_(argument) {}

Stacks::~Stacks() = default;

void Stacks::run() {
    if (free_.empty()) {
        all_.push_back(std::make_unique<Stack>());
        free_.push_back(all_.back().get());
    }
    Stack& stack = *free_.back();
    free_.pop_back();
    if (_setjmp(home_)) return;
    if (stack.begun) _longjmp(stack.next, 1);
    stack.begun = true;
    beginning = &stack;
    owner = this;
    ucontext_t context;
    getcontext(&context);
    context.uc_link = nullptr;
    context.uc_stack.ss_sp = stack.memory;
    context.uc_stack.ss_size = stack.bytes;
    makecontext(&context, &Stacks::begin, 0);
    setcontext(&context);
    std::abort();
}

void Stacks::begin() { owner->serve(*static_cast<Stack*>(beginning)); }

void Stacks::serve(Stack& stack) {
    for (;;) {
        body_(argument_);
        free_.push_back(&stack);
        leave(stack.next);
    }
}

void Stacks::leave(std::jmp_buf& here) {
    if (!_setjmp(here)) _longjmp(home_, 1);
}

void Stacks::go_on(std::jmp_buf& where) {
    if (!_setjmp(home_)) _longjmp(where, 1);
}

void Stacks::give_up() { _longjmp(home_, 1); }

void Stacks::clear() {
    free_.clear();
    all_.clear();
}

}  // namespace emulated
