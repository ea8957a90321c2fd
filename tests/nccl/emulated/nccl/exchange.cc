#include "exchange.h"

#include "arithmetic.h"
#include "errors.h"
#include "settings.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

namespace emulated_nccl {

namespace {

// One collective, in steps of as much as fits into the slots.  In each step every rank shows its
// data, waits until all have, and takes what it needs.  A slot can be filled again two steps
// later: when all have shown the step between, nobody reads the one before it any more.
class Steps {
public:
    Steps(Communicator& comm, const Operation& operation)
        : comm_(comm), operation_(operation), size_(size_of(operation.type)) {}

    bool run() {
        const std::size_t most = parts() ? slot_bytes / parts() : slot_bytes;
        const std::size_t step = std::max<std::size_t>(most / size_, 1);
        for (std::size_t at = 0; at < operation_.count; at += step) {
            const std::size_t some = std::min(step, operation_.count - at);
            show(at, some);
            if (!wait_for_all()) return false;
            if (at == 0 && !are_alike()) return comm_.wait([] { return false; });
            take(at, some);
            ++comm_.step;
        }
        return true;
    }

private:
    // How many parts a rank shows side by side, one for each rank; 0 for one and the same.
    std::size_t parts() const {
        return operation_.kind == Kind::reduce_scatter ? static_cast<std::size_t>(comm_.size) : 0;
    }
    bool is_root() const { return comm_.rank == operation_.root; }
    char* slot(int rank) const { return comm_.segment->slot(rank, comm_.step); }

    void show(std::size_t at, std::size_t some) {
        char* slot_ = slot(comm_.rank);
        const char* from = operation_.from + at * size_;
        if (parts()) {
            for (std::size_t part = 0; part < parts(); ++part)
                std::memcpy(slot_ + part * some * size_, from + part * operation_.count * size_,
                            some * size_);
        } else if (operation_.kind != Kind::broadcast || is_root()) {
            std::memcpy(slot_, from, some * size_);
        }
        Member& own = comm_.own();
        own.description[comm_.step % 2] = operation_.description();
        own.shown = comm_.step + 1;
        comm_.segment->ring_all();
    }

    bool wait_for_all() {
        for (int rank = 0; rank < comm_.size; ++rank) {
            const std::atomic<std::uint32_t>& shown = comm_.segment->member(rank).shown;
            if (!comm_.wait([&] { return std::int32_t(shown - comm_.step) > 0; })) return false;
        }
        return true;
    }

    // Ranks in different collectives hang, as on GPUs.
    bool are_alike() const {
        for (int rank = 1; rank < comm_.size; ++rank) {
            const Description& first = description(0);
            const Description& other = description(rank);
            if (!std::memcmp(&first, &other, sizeof first)) continue;
            if (explains() && comm_.rank == 0)
                complain("rank 0 of %d called %s, but rank %d %s; they hang, as NCCL would",
                         comm_.size, text(first).c_str(), rank, text(other).c_str());
            return false;
        }
        return true;
    }

    const Description& description(int rank) const {
        return comm_.segment->member(rank).description[comm_.step % 2];
    }

    static std::string text(const Description& description) {
        char made[128];
        std::snprintf(made, sizeof made, "%s(count %llu, type %d, op %d, root %d)",
                      name_of(static_cast<Kind>(description.kind)),
                      static_cast<unsigned long long>(description.count), description.type,
                      description.op, description.root);
        return made;
    }

    void take(std::size_t at, std::size_t some) {
        char* to = operation_.to + at * size_;
        switch (operation_.kind) {
            case Kind::reduce:
                if (is_root()) reduce_into(to, 0, some);
                break;
            case Kind::reduce_scatter:
                reduce_into(to, static_cast<std::size_t>(comm_.rank) * some * size_, some);
                break;
            case Kind::broadcast:
                std::memcpy(to, slot(operation_.root), some * size_);
                break;
            case Kind::all_gather:
                for (int rank = 0; rank < comm_.size; ++rank)
                    std::memcpy(to + static_cast<std::size_t>(rank) * operation_.bytes(),
                                slot(rank), some * size_);
                break;
            default: reduce_into(to, 0, some);
        }
    }

    void reduce_into(char* to, std::size_t offset, std::size_t some) {
        std::vector<const char*> inputs;
        for (int rank = 0; rank < comm_.size; ++rank) inputs.push_back(slot(rank) + offset);
        reduce(operation_.type, operation_.op, inputs, some, to);
    }

    Communicator& comm_;
    const Operation& operation_;
    const std::size_t size_;
};

}  // namespace

const char* name_of(Kind kind) {
    constexpr const char* names[] = {"AllReduce",     "Reduce", "Broadcast", "AllGather",
                                     "ReduceScatter", "Send",   "Recv"};
    return names[static_cast<int>(kind)];
}

bool is_reduction(Kind kind) {
    return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}

std::size_t Operation::bytes() const {
    return count * size_of(type);
}

Description Operation::description() const {
    Description made{};
    made.kind = static_cast<std::int32_t>(kind);
    made.root = root;
    made.type = is_reduction(kind) ? type : ncclInt8;
    made.op = is_reduction(kind) ? op : ncclSum;
    made.count = is_reduction(kind) ? count : bytes();
    return made;
}

bool collective(Communicator& comm, const Operation& operation) {
    return Steps(comm, operation).run();
}

}  // namespace emulated_nccl
