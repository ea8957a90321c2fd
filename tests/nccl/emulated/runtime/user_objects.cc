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

    void retain(unsigned number);
    // Return false where there are fewer.
    bool release(unsigned number);

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

bool is_number(unsigned number) {
    return number > 0 && number <= INT_MAX;
}

cudaError_t create(cudaUserObject_t* handle, void* data, cudaHostFn_t destroy, unsigned references,
                   unsigned flags) {
    if (!handle || !data || !destroy || !is_number(references)) return cudaErrorInvalidValue;
    if (flags != cudaUserObjectNoDestructorSync) return cudaErrorInvalidValue;
    const std::lock_guard<std::mutex> guard(objects().mutex);
    const auto object = std::make_shared<UserObject>(data, destroy, references);
    object->handle = *handle = objects().handles.add(object);
    return cudaSuccess;
}

}  // namespace

void UserObject::retain(unsigned number) {
    const std::lock_guard<std::mutex> guard(objects().mutex);
    references_ += number;
}

bool UserObject::release(unsigned number) {
    const std::lock_guard<std::mutex> guard(objects().mutex);
    if (number > references_) return false;
    references_ -= number;
    if (references_) return true;
    objects().handles.remove(handle);
    objects().destructors->put({}, [destroy = destroy_, data = data_] {
        on_host([&] { destroy(data); });
    });
    return true;
}

References::References(const References& other) : objects_(other.objects_) {
    for (const auto& [object, number] : objects_) object->retain(number);
}

References::~References() {
    for (const auto& [object, number] : objects_) object->release(number);
}

void References::add(const std::shared_ptr<UserObject>& object, unsigned number) {
    objects_[object] += number;
}

bool References::remove(const std::shared_ptr<UserObject>& object, unsigned number) {
    const auto found = objects_.find(object);
    if (found == objects_.end() || found->second < number) return false;
    found->second -= number;
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

cudaError_t cudaUserObjectRetain(cudaUserObject_t handle, unsigned number) {
    return call(__func__, [&] {
        const auto object = find(handle);
        if (!object || !is_number(number)) return cudaErrorInvalidValue;
        object->retain(number);
        return cudaSuccess;
    });
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t handle, unsigned number) {
    return call(__func__, [&] {
        const auto object = find(handle);
        if (!object || !is_number(number)) return cudaErrorInvalidValue;
        // More than there are is undefined behavior.
        return object->release(number) ? cudaSuccess : cudaErrorInvalidValue;
    });
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph_handle, cudaUserObject_t handle,
                                      unsigned number, unsigned flags) {
    return call(__func__, [&] {
        const Held held = hold();
        const auto graph = find_graph(graph_handle, held);
        const auto object = find(handle);
        if (!graph || !object || !is_number(number) || (flags & ~unsigned(cudaGraphUserObjectMove)))
            return cudaErrorInvalidValue;
        // Moved references are the caller's, and are counted already.
        if (!(flags & cudaGraphUserObjectMove)) object->retain(number);
        graph->references.add(object, number);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph_handle, cudaUserObject_t handle,
                                       unsigned number) {
    return call(__func__, [&] {
        const Held held = hold();
        const auto graph = find_graph(graph_handle, held);
        const auto object = find(handle);
        if (!graph || !object || !is_number(number) || !graph->references.remove(object, number))
            return cudaErrorInvalidValue;
        object->release(number);
        return cudaSuccess;
    });
}

}
