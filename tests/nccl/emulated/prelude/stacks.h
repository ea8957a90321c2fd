// Stacks of which one runs at a time, beside that of the host's thread.
#pragma once

#include <csetjmp>
#include <memory>
#include <vector>

namespace emulated {

class Stacks {
public:
    // `body(argument)` is what runs on a stack that is taken.
    Stacks(void (*body)(void*), void* argument);
    ~Stacks();

    // Run the body on a free stack, until it ends or leaves.
    void run();
    // Called on a stack: return to the caller of `run` or `go_on`.  `go_on` continues here.
    void leave(std::jmp_buf& here);
    // Run on from where the stack was left, until the body ends or leaves again.
    void go_on(std::jmp_buf& where);
    // Called on a stack that is given up: return to the caller of `run` or `go_on` for good.
    [[noreturn]] void give_up();
    // Forget what runs on the stacks.
    void clear();

private:
    struct Stack;
    static void begin();
    [[noreturn]] void serve(Stack& stack);

    void (*body_)(void*);
    void* argument_;
    std::vector<std::unique_ptr<Stack>> all_;
    std::vector<Stack*> free_;
    std::jmp_buf home_;
};

}  // namespace emulated
