#include "jobs.h"

#include "errors.h"
#include "exchange.h"

#include "emulated.h"

#include <algorithm>
#include <cstring>

namespace emulated_nccl {

namespace {

struct Job {
    CommunicatorPtr comm;
    std::vector<Operation> collectives, messages;
    std::uint64_t number;  // among the calls
    bool is_captured;      // and so ordered by its graph
};

// Wait until all jobs before this one have run; false when aborted meanwhile.
bool begin(const Job& job) {
    Communicator& comm = *job.comm;
    std::unique_lock<std::mutex> lock(comm.mutex);
    const auto ends = [&] { return comm.aborted || comm.revoked; };
    const auto is_next = [&] { return job.is_captured || job.number == comm.done; };
    comm.changed.wait(lock, [&] { return ends() || (!comm.is_running && is_next()); });
    if (ends()) return false;
    comm.is_running = true;
    return true;
}

void end(const Job& job) {
    Communicator& comm = *job.comm;
    const std::lock_guard<std::mutex> guard(comm.mutex);
    comm.is_running = false;
    if (!job.is_captured) ++comm.done;
    comm.changed.notify_all();
}

// The memory may have been freed since the call, as by a graph that is launched after that.
bool is_there(const Operation& operation, const Communicator& comm) {
    const std::size_t bytes = operation.bytes();
    const auto there = [&](const char* at, std::size_t parts) {
        return emulated_memory_device(at, bytes * parts) == comm.device;
    };
    const auto ranks = static_cast<std::size_t>(comm.size);
    const bool is_root = operation.root == comm.rank;
    const bool reads = operation.from && (operation.kind != Kind::broadcast || is_root);
    const bool writes = operation.to && (operation.kind != Kind::reduce || is_root);
    if (!bytes) return true;
    if (reads && !there(operation.from, operation.kind == Kind::reduce_scatter ? ranks : 1))
        return false;
    return !writes || there(operation.to, operation.kind == Kind::all_gather ? ranks : 1);
}

void do_operations(const Job& job) {
    Communicator& comm = *job.comm;
    for (const auto* operations : {&job.collectives, &job.messages}) {
        for (const Operation& operation : *operations) {
            suffer(operation.faults, comm.aborted);
            if (is_there(operation, comm)) continue;
            complain("%s uses memory that has been freed: an illegal address",
                     name_of(operation.kind));
            emulated_lose(cudaErrorIllegalAddress);
            return;
        }
    }
    for (const Operation& operation : job.collectives)
        if (!collective(comm, operation)) return;
    if (!job.messages.empty()) exchange_messages(comm, job.messages);
}

void run(void* data) {
    const Job& job = *static_cast<Job*>(data);
    if (!begin(job)) return;
    do_operations(job);
    end(job);
}

void release(void* data) {
    const std::unique_ptr<Job> job(static_cast<Job*>(data));
    Communicator& comm = *job->comm;
    const std::lock_guard<std::mutex> guard(comm.mutex);
    --(job->is_captured ? comm.captured_jobs : comm.jobs);
    comm.changed.notify_all();
}

std::unique_ptr<Job> make_job(Plan& plan) {
    auto job = std::make_unique<Job>();
    job->comm = plan.comm;
    job->is_captured = plan.capture != 0;
    for (Operation& operation : plan.operations)
        (is_message(operation.kind) ? job->messages : job->collectives)
            .push_back(std::move(operation));
    return job;
}

ncclResult_t enqueue(std::unique_ptr<Job> job, cudaStream_t stream) {
    const CommunicatorPtr comm = job->comm;
    const bool is_captured = job->is_captured;
    {
        const std::lock_guard<std::mutex> guard(comm->mutex);
        ++(is_captured ? comm->captured_jobs : comm->jobs);
        if (!is_captured) job->number = comm->called++;
    }
    const int error = emulated_enqueue(stream, run, job.release(), release);
    if (error && !is_captured) {
        const std::lock_guard<std::mutex> guard(comm->mutex);
        --comm->called;
    }
    return cuda_result(error);
}

// In a graph the operations of one communicator depend on each other, on whatever streams they
// were captured.
cudaError_t follow_captured(Communicator& comm, const Plan& plan) {
    if (!plan.capture || plan.capture != comm.capture) return cudaSuccess;
    return cudaStreamWaitEvent(plan.streams.front(), comm.captured, 0);
}

cudaError_t note_captured(Communicator& comm, const Plan& plan) {
    if (!plan.capture) return cudaSuccess;
    comm.capture = plan.capture;
    if (!comm.captured)
        if (const auto error = cudaEventCreateWithFlags(&comm.captured, cudaEventDisableTiming))
            return error;
    return cudaEventRecord(comm.captured, plan.streams.front());
}

// Let one stream wait for all that another has.
cudaError_t wait_for_stream(cudaStream_t waiting, cudaStream_t other) {
    cudaEvent_t event;
    if (const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming))
        return error;
    cudaError_t error = cudaEventRecord(event, other);
    if (!error) error = cudaStreamWaitEvent(waiting, event, 0);
    cudaEventDestroy(event);
    return error;
}

ncclResult_t launch_on_streams(Plan& plan) {
    const cudaStream_t stream = plan.streams.front();
    // "This will enforce a stream dependency of all streams before the NCCL kernel starts and
    // block all streams until the NCCL kernel completes" (user guide, CUDA Stream Semantics).
    for (std::size_t other = 1; other < plan.streams.size(); ++other)
        if (const auto result = cuda_result(wait_for_stream(stream, plan.streams[other])))
            return result;
    Communicator& comm = *plan.comm;
    if (const auto result = cuda_result(follow_captured(comm, plan))) return result;
    if (const ncclResult_t result = enqueue(make_job(plan), stream)) return result;
    if (const auto result = cuda_result(note_captured(comm, plan))) return result;
    for (std::size_t other = 1; other < plan.streams.size(); ++other)
        if (const auto result = cuda_result(wait_for_stream(plan.streams[other], stream)))
            return result;
    return ncclSuccess;
}

}  // namespace

ncclResult_t launch(Plan& plan) {
    OnDevice device(plan.comm->device);
    if (device.result) return device.result;
    const ncclResult_t result = launch_on_streams(plan);
    const ncclResult_t left = device.leave();
    return result ? result : left;
}

bool connect_ranks(Plan& plan) {
    Communicator& comm = *plan.comm;
    const auto is_collective = [](const Operation& each) { return !is_message(each.kind); };
    if (!comm.connected &&
        std::any_of(plan.operations.begin(), plan.operations.end(), is_collective)) {
        std::vector<Note> all;
        if (!comm.tell({Note::connect, 0, 0, {}}, all)) return false;
        comm.connected = true;
    }
    std::uint64_t sends = 0, receives = 0;
    for (const Operation& operation : plan.operations) {
        if (is_collective(operation) || operation.root == comm.rank) continue;
        (operation.kind == Kind::send ? sends : receives) |= std::uint64_t(1) << operation.root;
    }
    comm.own().sends_to |= sends;
    comm.own().receives_from |= receives;
    comm.segment->ring_all();
    for (int peer = 0; peer < comm.size; ++peer) {
        const Member& other = comm.segment->member(peer);
        const std::uint64_t own = std::uint64_t(1) << comm.rank;
        const bool sent = sends >> peer & 1, received = receives >> peer & 1;
        const auto is_connected = [&] {
            return (!sent || other.receives_from & own) && (!received || other.sends_to & own);
        };
        if (!comm.wait(is_connected)) return false;
    }
    return true;
}

void wait_for_jobs(Communicator& comm) {
    std::unique_lock<std::mutex> lock(comm.mutex);
    comm.changed.wait(lock, [&] { return comm.jobs == 0; });
}

void wait_for_graphs(Communicator& comm) {
    std::unique_lock<std::mutex> lock(comm.mutex);
    comm.changed.wait(lock, [&] { return comm.captured_jobs == 0; });
}

OnDevice::OnDevice(int device) : result(ncclSuccess), before_(emulated_current_device()) {
    if (device != before_) result = cuda_result(cudaSetDevice(device));
}

OnDevice::~OnDevice() { leave(); }

ncclResult_t OnDevice::leave() {
    if (emulated_current_device() == before_) return ncclSuccess;
    return cuda_result(cudaSetDevice(before_));
}

}  // namespace emulated_nccl
