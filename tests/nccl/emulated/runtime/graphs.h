// Graphs: work that is run again at each launch.
#pragma once

#include "streams.h"

namespace emulated {

// Makes the job of one launch.
using Make = std::function<Job(const Held&)>;

struct Node {
    Make make;
    std::vector<std::size_t> after;  // nodes before it in the same graph
};

class UserObject;

// References to user objects that a graph owns; a copy owns as many again.
class References {
public:
    References() = default;
    References(const References& other);
    References& operator=(const References&) = delete;
    ~References();
    void add(const std::shared_ptr<UserObject>& object, unsigned count);
    // Return false where it has fewer.
    bool drop(const std::shared_ptr<UserObject>& object, unsigned count);

private:
    std::vector<std::pair<std::shared_ptr<UserObject>, unsigned>> objects_;
};

struct Graph {
    cudaGraph_t handle = nullptr;
    std::vector<Node> nodes;
    References references;
};

// graphs.cc

// A node that does the same at each launch.
Make plain_node(Job job);
std::shared_ptr<Graph> add_graph(const Held&);
// Return false for a handle that is none.
bool remove_graph(cudaGraph_t handle, const Held&);
cudaGraphNode_t node_handle(const Graph& graph, std::size_t node);
// Find the node of a handle; false where the graph has none such.
bool find_node(const Graph& graph, cudaGraphNode_t handle, std::size_t& node);

}  // namespace emulated
