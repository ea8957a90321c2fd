// What a call asks for.
#pragma once

#include "faults.h"
#include "segment.h"

#include <nccl.h>

namespace emulated_nccl {

enum class Kind { all_reduce, reduce, broadcast, all_gather, reduce_scatter, send, receive };

const char* name_of(Kind kind);
bool is_reduction(Kind kind);
inline bool is_message(Kind kind) { return kind == Kind::send || kind == Kind::receive; }

struct Operation {
    Kind kind;
    const char* from;   // of a receive, null
    char* to;           // of a send, null
    std::size_t count;  // of a rank's part, for those that have parts
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;           // of a message, the peer
    std::vector<Fault> faults;

    std::size_t bytes() const;
    // What must be alike on all ranks: what only copies is counted in bytes, as in NCCL.
    Description description() const;
};

}  // namespace emulated_nccl
