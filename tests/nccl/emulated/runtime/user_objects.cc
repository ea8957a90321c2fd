// User objects: things of the user's that live as long as graphs refer to them.
//
// Rules from "CUDA Programming Guide", CUDA User Objects: an instantiated graph retains a copy of
// every reference of its source graph, and one that is destroyed in flight keeps them until it has
// run; destructors run on a thread of the library's, and may not call CUDA.
#include "graphs.h"

#include <climits>
#include <utility>

namespace emulated {

class UserObject {
public:
    UserObject(void* data, cudaHostFn_t destroy, unsigned references)
        : data_(data), destroy_(destroy), references_(references) {}

    cudaUserObject_t handle = nullptr;

    void retain(unsigned count);
    // Return false where there are fewer.
    bool release(unsigned count);

private:
    void* const data_;
    const cudaHostFn_t destroy_;
    unsigned long references_;
};

namespace {

// A lock of its own: graphs end on threads of streams, and within calls.
struct Objects {
    std::mutex mutex;
    Handles<cudaUserObject_t, UserObject> handles{5};
    std::shared_ptr<Line> destructors = std::make_shared<Line>();
};

Objects& objects() {
    static Objects& made = *new Objects;
    return made;
}

std::shared_ptr<UserObject> find(cudaUserObject_t handle) {
    const std::lock_guard<std::mutex> guard(objects().mutex);
    return objects().handles.find(handle);
}

bool is_count(unsigned count) {
    return count > 0 && count <= INT_MAX;
}

cudaError_t create(cudaUserObject_t* handle, void* data, cudaHostFn_t destroy, unsigned references,
                   unsigned flags) {
    if (!handle || !data || !destroy || !is_count(references)) return cudaErrorInvalidValue;
    if (flags != cudaUserObjectNoDestructorSync) return cudaErrorInvalidValue;
    const std::lock_guard<std::mutex> guard(objects().mutex);
    const auto object = std::make_shared<UserObject>(data, destroy, references);
    object->handle = *handle = objects().handles.add(object);
    return cudaSuccess;
}

}  // namespace

void UserObject::retain(unsigned count) {
    const std::lock_guard<std::mutex> guard(objects().mutex);
    references_ += count;
}

bool UserObject::release(unsigned count) {
    const std::lock_guard<std::mutex> guard(objects().mutex);
    if (count > references_) return false;
    references_ -= count;
    if (references_) return true;
    objects().handles.remove(handle);
    objects().destructors->put({}, [destroy = destroy_, data = data_] {
        on_host([&] { destroy(data); });
    });
    return true;
}

References::References(const References& other) : objects_(other.objects_) {
    for (const auto& [object, count] : objects_) object->retain(count);
}

References::~References() {
    for (const auto& [object, count] : objects_) object->release(count);
}

void References::add(const std::shared_ptr<UserObject>& object, unsigned count) {
    objects_[object] += count;
}

bool References::remove(const std::shared_ptr<UserObject>& object, unsigned count) {
    const auto found = objects_.find(object);
    if (found == objects_.end() || found->second < count) return false;
    found->second -= count;
    if (!found->second) objects_.erase(found);
    return true;
}

}  // namespace emulated

using namespace emulated;

extern "C" {

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data, cudaHostFn_t destroy,
                                 unsigned references, unsigned flags) {
    return call(__func__, [&] { return create(object, data, destroy, references, flags); });
}

cudaError_t cudaUserObjectRetain(cudaUserObject_t handle, unsigned count) {
    return call(__func__, [&] {
        const auto object = find(handle);
        if (!object || !is_count(count)) return cudaErrorInvalidValue;
        object->retain(count);
        return cudaSuccess;
    });
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t handle, unsigned count) {
    return call(__func__, [&] {
        const auto object = find(handle);
        if (!object || !is_count(count)) return cudaErrorInvalidValue;
        // More than there are is undefined behavior.
        return object->release(count) ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph_handle, cudaUserObject_t handle,
                                      unsigned count, unsigned flags) {
    return call(__func__, [&] {
        const Held held = hold();
        const auto graph = find_graph(graph_handle, held);
        const auto object = find(handle);
        if (!graph || !object || !is_count(count) || (flags & ~unsigned(cudaGraphUserObjectMove)))
            return cudaErrorInvalidValue;
        // Moved references are the caller's, and are counted already.
        if (!(flags & cudaGraphUserObjectMove)) object->retain(count);
        graph->references.add(object, count);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph_handle, cudaUserObject_t handle,
                                       unsigned count) {
    return call(__func__, [&] {
        const Held held = hold();
        const auto graph = find_graph(graph_handle, held);
        const auto object = find(handle);
        if (!graph || !object || !is_count(count) || !graph->references.remove(object, count))
            return cudaErrorInvalidValue;
        object->release(count);
        return cudaSuccess;
    });
}

}
