// Graphs: instantiation and launches.
#include "graphs.h"

#include <utility>

namespace emulated {

namespace {

// Node handles are numbers within their graph's.
Handles<cudaGraph_t, Graph>& all_graphs() {
    static auto& made = *new Handles<cudaGraph_t, Graph>(3, std::uintptr_t(1) << 20);
    return made;
}

}  // namespace

Make plain_node(Job job) {
    const auto shared = std::make_shared<const Job>(std::move(job));
    return [shared](const Held&) { return [shared] { (*shared)(); }; };
}

std::shared_ptr<Graph> add_graph(const Held&) {
    const auto graph = std::make_shared<Graph>();
    graph->handle = all_graphs().add(graph);
    count(graphs, 1);
    return graph;
}

bool remove_graph(cudaGraph_t handle, const Held& held) {
    std::shared_ptr<Graph> graph = all_graphs().remove(handle);
    if (!graph) return false;
    held.drop(std::move(graph));
    count(graphs, -1);
    return true;
}

cudaGraphNode_t node_handle(const Graph& graph, std::size_t node) {
    return reinterpret_cast<cudaGraphNode_t>(
        reinterpret_cast<std::uintptr_t>(graph.handle) + 1 + node);
}

bool find_node(const Graph& graph, cudaGraphNode_t handle, std::size_t& node) {
    node = reinterpret_cast<std::uintptr_t>(handle) -
           reinterpret_cast<std::uintptr_t>(graph.handle) - 1;
    return node < graph.nodes.size();
}

}  // namespace emulated
