// Handles of live things.  A number is given once, so that a handle used after its end is found.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace emulated {

template <class Handle, class Thing>
class Handles {
public:
    // The handles of one kind begin at `kind` << 48, beyond all memory; they are `step` apart.
    explicit Handles(std::uintptr_t kind, std::uintptr_t step = 16)
        : first_(kind << 48), step_(step), next_(first_) {}

    Handle add(std::shared_ptr<Thing> thing) {
        next_ += step_;
        things_[next_] = std::move(thing);
        return reinterpret_cast<Handle>(next_);
    }

    // Return nullptr for a handle that is none, or none any more.
    std::shared_ptr<Thing> find(Handle handle) const {
        const auto found = things_.find(reinterpret_cast<std::uintptr_t>(handle));
        return found == things_.end() ? nullptr : found->second;
    }

    // Tell whether there was such a thing once.
    bool was(Handle handle) const {
        const auto number = reinterpret_cast<std::uintptr_t>(handle);
        return number > first_ && number <= next_ && (number - first_) % step_ == 0 &&
               !things_.count(number);
    }

    std::shared_ptr<Thing> remove(Handle handle) {
        const std::shared_ptr<Thing> thing = find(handle);
        things_.erase(reinterpret_cast<std::uintptr_t>(handle));
        return thing;
    }

    const std::map<std::uintptr_t, std::shared_ptr<Thing>>& all() const { return things_; }

private:
    const std::uintptr_t first_, step_;
    std::uintptr_t next_;
    std::map<std::uintptr_t, std::shared_ptr<Thing>> things_;
};

}  // namespace emulated
