// The order in which a launch runs the nodes of a graph.
//
// Nodes that a graph does not order may run in any order, so one is chosen at random: what lacks a
// dependency fails in some launch.  One runs at a time, so branches of a graph are never parallel.
#include "graphs.h"

#include <algorithm>
#include <cstdlib>
#include <random>

namespace emulated {

namespace {

struct Step {
    Job job;
    bool is_wait;
    std::vector<std::size_t> next;
    std::size_t missing;  // steps before it that have not run
};

// What chooses the orders: one seed for a process, the same on every rank if they are to agree.
unsigned long environment_seed() {
    static const char* const text = std::getenv("EMULATED_ORDER");
    return text ? std::strtoul(text, nullptr, 10) : 0;
}

// Take one of the steps that may run; a wait for an event of outside only when there is no other.
std::size_t choose(const std::vector<Step>& steps, std::vector<std::size_t>& ready,
                   std::minstd_rand& random) {
    const auto is_wait = [&steps](std::size_t step) { return steps[step].is_wait; };
    const auto waits = std::partition(ready.begin(), ready.end(), std::not_fn(is_wait));
    const std::size_t choices = waits == ready.begin() ? ready.size() : waits - ready.begin();
    std::swap(ready[random() % choices], ready.back());
    const std::size_t chosen = ready.back();
    ready.pop_back();
    return chosen;
}

void run(std::vector<Step>& steps, std::minstd_rand random) {
    std::vector<std::size_t> ready;
    for (std::size_t step = 0; step < steps.size(); ++step)
        if (!steps[step].missing) ready.push_back(step);
    while (!ready.empty()) {
        const std::size_t chosen = choose(steps, ready, random);
        steps[chosen].job();
        for (const std::size_t next : steps[chosen].next)
            if (!--steps[next].missing) ready.push_back(next);
    }
}

}  // namespace

Job launch_job(const std::vector<Node>& nodes, unsigned long seed, const Held& held) {
    const auto steps = std::make_shared<std::vector<Step>>();
    for (const Node& node : nodes) {
        for (const std::size_t before : node.after) (*steps)[before].next.push_back(steps->size());
        steps->push_back({node.make(held), node.is_wait, {}, node.after.size()});
    }
    std::minstd_rand random(static_cast<unsigned>(environment_seed() * 1000003 + seed));
    random.discard(8);  // numbers of seeds that are close begin alike
    return [steps, random] { run(*steps, random); };
}

}  // namespace emulated
