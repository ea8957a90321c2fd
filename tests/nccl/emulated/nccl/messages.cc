// Sends and receives.
#include "errors.h"
#include "exchange.h"
#include "settings.h"

#include <algorithm>
#include <cstring>
#include <list>

namespace emulated_nccl {

namespace {

// One message.  It goes through the box of its two ranks in parts, an empty one in one part.
class Transfer {
public:
    Transfer(Communicator& comm, const Operation& operation)
        : comm_(comm), operation_(operation), left_(operation.bytes()) {}

    bool is_send() const { return operation_.kind == Kind::send; }
    bool is_over() const { return left_ == 0 && has_begun_; }
    bool shares_box(const Transfer& other) const {
        return is_send() == other.is_send() && operation_.root == other.operation_.root;
    }

    // Move one part, if it can be moved now.
    bool move() { return is_send() ? put() : take(); }

private:
    Box& box() const {
        const int peer = operation_.root;
        return is_send() ? comm_.segment->box(comm_.rank, peer)
                         : comm_.segment->box(peer, comm_.rank);
    }

    bool put() {
        Box& box = this->box();
        const std::uint32_t filled = box.filled;
        if (filled - box.emptied == 2) return false;
        const std::size_t part = std::min(left_, box_bytes);
        std::memcpy(box.data[filled % 2], operation_.from + done(), part);
        box.whole[filled % 2] = operation_.bytes();
        box.bytes[filled % 2] = part;
        box.filled = filled + 1;
        return moved(part);
    }

    bool take() {
        Box& box = this->box();
        const std::uint32_t emptied = box.emptied;
        if (box.filled == emptied || differs(box.whole[emptied % 2])) return false;
        const std::size_t part = box.bytes[emptied % 2];
        std::memcpy(operation_.to + done(), box.data[emptied % 2], part);
        box.emptied = emptied + 1;
        return moved(part);
    }

    // A receive of other bytes than were sent hangs.
    bool differs(std::uint64_t sent) {
        if (sent == operation_.bytes()) return false;
        if (explains() && !has_explained_)
            complain("rank %d receives %zu bytes from rank %d, which sends %llu; they hang, as "
                     "NCCL would",
                     comm_.rank, operation_.bytes(), operation_.root,
                     static_cast<unsigned long long>(sent));
        has_explained_ = true;
        return true;
    }

    bool moved(std::size_t part) {
        has_begun_ = true;
        left_ -= part;
        comm_.segment->ring(operation_.root);
        return true;
    }

    std::size_t done() const { return operation_.bytes() - left_; }

    Communicator& comm_;
    const Operation& operation_;
    std::size_t left_;
    bool has_begun_ = false, has_explained_ = false;
};

// Move a part of each message that has none before it in the same box.
bool move_some(std::list<Transfer>& transfers) {
    bool moved = false;
    for (auto one = transfers.begin(); one != transfers.end();) {
        const auto is_before = [&](const Transfer& other) { return other.shares_box(*one); };
        const bool is_first = std::none_of(transfers.begin(), one, is_before);
        while (is_first && !one->is_over() && one->move()) moved = true;
        one = one->is_over() ? transfers.erase(one) : std::next(one);
    }
    return moved;
}

}  // namespace

bool exchange_messages(Communicator& comm, const std::vector<Operation>& messages) {
    std::list<Transfer> transfers;
    for (const Operation& message : messages) transfers.emplace_back(comm, message);
    return comm.wait([&] {
        while (!comm.aborted && move_some(transfers)) {
        }
        return transfers.empty();
    });
}

}  // namespace emulated_nccl
