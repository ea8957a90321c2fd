// Graphs: instantiation, launches and their end.
//
// Rules from "CUDA Runtime API", Graph Management: a launch comes after all work of its stream and
// after earlier launches of the same executable graph, and one that is destroyed in flight is freed
// when it has run.  Handles that are none are cudaErrorInvalidValue there.
#include "capture.h"

#include <utility>

namespace emulated {

namespace {

struct Exec {
    std::vector<Node> nodes;
    References references;
    Point last;                  // behind its last launch
    unsigned long launches = 0;
};

using ExecPtr = std::shared_ptr<Exec>;

// Nodes of a graph have the numbers behind its own.
Handles<cudaGraph_t, Graph>& all_graphs() {
    static auto& made = *new Handles<cudaGraph_t, Graph>(3, std::uintptr_t(1) << 20);
    return made;
}

Handles<cudaGraphExec_t, Exec>& all_execs() {
    static auto& made = *new Handles<cudaGraphExec_t, Exec>(4);
    return made;
}

cudaError_t instantiate(cudaGraphExec_t* handle, cudaGraph_t graph_handle,
                        unsigned long long flags) {
    constexpr unsigned long long known = cudaGraphInstantiateFlagAutoFreeOnLaunch |
                                         cudaGraphInstantiateFlagDeviceLaunch |
                                         cudaGraphInstantiateFlagUseNodePriority;
    if (!handle || (flags & ~known)) return cudaErrorInvalidValue;
    if (flags & cudaGraphInstantiateFlagDeviceLaunch)
        return not_emulated("cudaGraphInstantiateFlagDeviceLaunch");
    const Held held = hold();
    const std::shared_ptr<Graph> graph = find_graph(graph_handle, held);
    if (!graph) return cudaErrorInvalidValue;
    auto exec = std::make_shared<Exec>(Exec{graph->nodes, graph->references, Point(), 0});
    *handle = all_execs().add(std::move(exec));
    count(graph_execs, 1);
    return cudaSuccess;
}

// A launch into a capture: its nodes become one of the captured graph.
Node child_node(const ExecPtr& exec) {
    const auto launches = std::make_shared<unsigned long>(0);
    const auto make = [exec, launches](const Held& held) {
        return launch_job(exec->nodes, (*launches)++, held);
    };
    return {make, {}, false};
}

cudaError_t launch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
    const Held held = hold();
    const ExecPtr exec = all_execs().find(handle);
    if (!exec) return cudaErrorInvalidValue;
    StreamPtr stream;
    if (const cudaError_t error = find_stream(stream_handle, stream, held)) return error;
    if (const cudaError_t error = check_usable(*stream, held)) return error;
    if (stream->capture) {
        add_node(*stream, child_node(exec), held);
        return cudaSuccess;
    }
    Job run = launch_job(exec->nodes, exec->launches++, held);
    Job job = [exec, run = std::move(run)] { run(); };  // which keeps it
    exec->last = put(*stream, std::move(job), held, {exec->last});
    return cudaSuccess;
}

}  // namespace

Node plain_node(Job job) {
    const auto shared = std::make_shared<const Job>(std::move(job));
    return {[shared](const Held&) { return [shared] { (*shared)(); }; }, {}, false};
}

std::shared_ptr<Graph> add_graph(const Held&) {
    const auto graph = std::make_shared<Graph>();
    graph->handle = all_graphs().add(graph);
    count(graphs, 1);
    return graph;
}

std::shared_ptr<Graph> find_graph(cudaGraph_t handle, const Held&) {
    return all_graphs().find(handle);
}

bool remove_graph(cudaGraph_t handle, const Held& held) {
    std::shared_ptr<Graph> graph = all_graphs().remove(handle);
    if (!graph) return false;
    held.drop(std::move(graph));
    count(graphs, -1);
    return true;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
    return call(__func__, [&] { return instantiate(exec, graph, flags); });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long flags) {
    return call(__func__, [&] { return instantiate(exec, graph, flags); });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    return launch_call(__func__, [&] { return launch(exec, stream); });
}

// There is nothing to upload; what it comes after, it cannot be seen to come after.
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t handle) {
    return call(__func__, [&]() -> cudaError_t {
        const Held held = hold();
        if (!all_execs().find(exec)) return cudaErrorInvalidValue;
        StreamPtr stream;
        if (const cudaError_t error = find_stream(handle, stream, held)) return error;
        return check_observable(*stream, held);
    });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
    return call(__func__, [&]() -> cudaError_t {
        const Held held = hold();
        ExecPtr exec = all_execs().remove(handle);
        if (!exec) return cudaErrorInvalidValue;
        held.drop(std::move(exec));
        count(graph_execs, -1);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
    return call(__func__, [&]() -> cudaError_t {
        const Held held = hold();
        const std::shared_ptr<Graph> graph = find_graph(handle, held);
        // "All operations other than destroy" are permitted while it is captured.
        if (!graph || graph->is_captured) return cudaErrorInvalidValue;
        held.drop(graph);
        remove_graph(handle, held);
        return cudaSuccess;
    });
}

}
