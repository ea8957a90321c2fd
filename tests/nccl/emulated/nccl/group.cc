#include "group.h"

#include "errors.h"
#include "jobs.h"

#include <algorithm>
#include <thread>

namespace emulated_nccl {

namespace {

constexpr int undecided = -1;

struct Group {
    int depth = 0;
    ncclResult_t error = ncclSuccess;
    int blocking = undecided;
    std::vector<Task> tasks;
    std::vector<Plan> plans;
};

thread_local Group group;

// The capture that takes in what is put on a stream; 0 where none does.
ncclResult_t capture_of(cudaStream_t stream, unsigned long long& capture) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    capture = 0;
    const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, &capture);
    if (status != cudaStreamCaptureStatusActive) capture = 0;
    return cuda_result(error);
}

// Communicators that block and others are not for one group.
ncclResult_t agree_on_blocking(const Communicator& comm) {
    if (group.blocking == undecided) group.blocking = comm.blocking;
    if (group.blocking == static_cast<int>(comm.blocking)) return ncclSuccess;
    return warn(ncclInvalidArgument,
                "Blocking and nonblocking communicators are not allowed in the same group.");
}

// Run tasks side by side; one that fails ends the others, which might wait for it for ever.
ncclResult_t run_all(std::vector<Task>& tasks) {
    if (tasks.size() == 1) return tasks.front().run();
    std::vector<std::thread> threads;
    std::mutex mutex;
    ncclResult_t failed = ncclSuccess;
    const auto run_one = [&](Task& task) {
        const ncclResult_t result = task.run();
        if (result == ncclSuccess) return;
        const std::lock_guard<std::mutex> guard(mutex);
        if (failed == ncclSuccess) failed = result;
        for (const Task& other : tasks)
            if (!other.is_end) other.comm->stop();
    };
    for (Task& task : tasks) threads.emplace_back(run_one, std::ref(task));
    for (std::thread& thread : threads) thread.join();
    return failed;
}

// A send to oneself would wait for ever for its receive.
ncclResult_t check_messages_to_self(const Plan& plan) {
    long sends = 0, receives = 0;
    for (const Operation& operation : plan.operations) {
        if (operation.root != plan.comm->rank) continue;
        sends += operation.kind == Kind::send;
        receives += operation.kind == Kind::receive;
    }
    if (sends > receives)
        return warn(ncclInvalidUsage, "Trying to send to self without a matching recv");
    if (sends < receives)
        return warn(ncclInvalidUsage, "Trying to recv to self without a matching send");
    return ncclSuccess;
}

ncclResult_t carry_out(Group& work) {
    if (const ncclResult_t result = run_all(work.tasks)) return result;
    std::vector<Task> connections;
    for (Plan& plan : work.plans) {
        if (const ncclResult_t result = check_messages_to_self(plan)) return result;
        const auto connect = [&plan] {
            return connect_ranks(plan) ? ncclSuccess : ncclInternalError;
        };
        connections.push_back({plan.comm, connect, false});
    }
    if (const ncclResult_t result = run_all(connections)) return result;
    for (Plan& plan : work.plans)
        if (const ncclResult_t result = launch(plan)) return result;
    return ncclSuccess;
}

std::vector<CommunicatorPtr> communicators_of(const Group& work) {
    std::vector<CommunicatorPtr> all;
    for (const Task& task : work.tasks)
        if (!task.is_end) all.push_back(task.comm);
    for (const Plan& plan : work.plans) all.push_back(plan.comm);
    return all;
}

void set_states(const Group& work, ncclResult_t state) {
    for (const CommunicatorPtr& comm : communicators_of(work))
        if (!comm->blocking) comm->state = state;
}

// Communicators that an abort must not free yet.
class InUse {
public:
    explicit InUse(std::vector<CommunicatorPtr> all) : all_(std::move(all)) { count(1); }
    InUse(InUse&& other) noexcept : all_(std::move(other.all_)) { other.all_.clear(); }
    ~InUse() { count(-1); }

private:
    void count(int change) {
        for (const CommunicatorPtr& comm : all_) {
            const std::lock_guard<std::mutex> guard(comm->mutex);
            comm->users += change;
            comm->changed.notify_all();
        }
    }

    std::vector<CommunicatorPtr> all_;
};

ncclResult_t begin_in_background(Group work) {
    set_states(work, ncclInProgress);
    InUse in_use(communicators_of(work));
    std::thread([work = std::move(work), in_use = std::move(in_use)]() mutable {
        set_states(work, carry_out(work));
    }).detach();
    return ncclInProgress;
}

Group take() {
    Group work = std::move(group);
    group = Group();
    return work;
}

}  // namespace

void enter_group() {
    ++group.depth;
}

ncclResult_t leave_group() {
    if (group.depth == 0) return warn(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    if (--group.depth > 0) return ncclSuccess;
    Group work = take();
    if (work.error) {
        set_states(work, work.error);
        return work.error;
    }
    const bool ends = std::any_of(work.tasks.begin(), work.tasks.end(),
                                  [](const Task& task) { return task.is_end; });
    if (work.blocking == 0 && !ends) return begin_in_background(std::move(work));
    const InUse in_use(communicators_of(work));
    return carry_out(work);
}

ncclResult_t drop_group() {
    if (group.depth == 0) return warn(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    if (--group.depth == 0) take();
    return ncclSuccess;
}

ncclResult_t spoil(ncclResult_t result) {
    if (group.depth > 0 && result != ncclSuccess && result != ncclInProgress) group.error = result;
    return result;
}

ncclResult_t add_task(Task task) {
    if (!task.is_end)
        if (const ncclResult_t result = agree_on_blocking(*task.comm)) return result;
    group.tasks.push_back(std::move(task));
    return ncclSuccess;
}

ncclResult_t add_operation(const CommunicatorPtr& comm, Operation operation, cudaStream_t stream) {
    if (const ncclResult_t result = agree_on_blocking(*comm)) return result;
    unsigned long long capture = 0;
    if (const ncclResult_t result = capture_of(stream, capture)) return result;
    const auto is_of_comm = [&](const Plan& plan) { return plan.comm == comm; };
    auto plan = std::find_if(group.plans.begin(), group.plans.end(), is_of_comm);
    if (plan == group.plans.end()) {
        group.plans.push_back({comm, {}, {stream}, capture});
        plan = std::prev(group.plans.end());
    }
    if (plan->capture != capture)
        return warn(ncclInvalidUsage,
                    "Streams given to a communicator within a NCCL group must either be all "
                    "uncaptured or all captured by the same graph.");
    if (std::find(plan->streams.begin(), plan->streams.end(), stream) == plan->streams.end())
        plan->streams.push_back(stream);
    plan->operations.push_back(std::move(operation));
    return ncclSuccess;
}

}  // namespace emulated_nccl

using namespace emulated_nccl;

extern "C" {

ncclResult_t ncclGroupStart() {
    const Call call("ncclGroupStart", -1);
    if (call.result) return call.result;
    enter_group();
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    const Call call("ncclGroupEnd", -1);
    if (!call.result) return leave_group();
    drop_group();
    return call.result;
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) {
    const Call call("ncclGroupSimulateEnd", -1, 22203);
    drop_group();
    return call.result ? call.result : refuse("ncclGroupSimulateEnd");
}

}
