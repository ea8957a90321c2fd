// Graphs: work that is run again at each launch.
#pragma once

#include "streams.h"

#include <map>

namespace emulated {

// Makes the job of one launch.
using Make = std::function<Job(const Held&)>;

struct Node {
    Make make;
    std::vector<std::size_t> after;  // nodes before it in the same graph, of lower numbers
    bool is_wait = false;            // for an event of outside
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
    // Return false where there are fewer.
    bool remove(const std::shared_ptr<UserObject>& object, unsigned count);

private:
    std::map<std::shared_ptr<UserObject>, unsigned long> objects_;
};

struct Graph {
    cudaGraph_t handle = nullptr;
    bool is_captured = false;        // right now
    std::vector<Node> nodes;
    References references;
};

// graphs.cc

// A node that does the same at each launch.
Node plain_node(Job job);
std::shared_ptr<Graph> add_graph(const Held&);
std::shared_ptr<Graph> find_graph(cudaGraph_t handle, const Held&);
// Return false for a handle that is none.
bool remove_graph(cudaGraph_t handle, const Held&);

// launch.cc

// Make a job that runs the nodes, each after those before it, in an order that `seed` chooses.
Job launch_job(const std::vector<Node>& nodes, unsigned long seed, const Held&);

}  // namespace emulated
