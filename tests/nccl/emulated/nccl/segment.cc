#include "segment.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

namespace emulated_nccl {

namespace {

// A sleeper looks again this often: a peer that dies rings nobody.
constexpr timespec nap{0, 50'000'000};

long futex(std::atomic<std::uint32_t>& word, int what, std::uint32_t value, const timespec* limit) {
    return syscall(SYS_futex, &word, what, value, limit, nullptr, 0);
}

std::size_t members_of(int size) {
    return sizeof(Member) * static_cast<std::size_t>(size);
}

std::size_t slots_of(int size) {
    return 2 * slot_bytes * static_cast<std::size_t>(size);
}

std::size_t bytes_of(int size) {
    const auto boxes = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
    return members_of(size) + slots_of(size) + sizeof(Box) * boxes;
}

}  // namespace

int Segment::create(int size) {
    const int descriptor = memfd_create("emulated-nccl", MFD_CLOEXEC);
    if (descriptor < 0) return -1;
    if (ftruncate(descriptor, static_cast<off_t>(bytes_of(size))) == 0) return descriptor;
    close(descriptor);
    return -1;
}

std::shared_ptr<Segment> Segment::map(int descriptor, int size) {
    void* base =
        mmap(nullptr, bytes_of(size), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (base == MAP_FAILED) return nullptr;
    return std::shared_ptr<Segment>(new Segment(static_cast<char*>(base), size));
}

Segment::~Segment() {
    munmap(base_, bytes_of(size));
}

Member& Segment::member(int rank) const {
    return reinterpret_cast<Member*>(base_)[rank];
}

char* Segment::slot(int rank, std::uint32_t step) const {
    const std::size_t number = 2 * static_cast<std::size_t>(rank) + step % 2;
    return base_ + members_of(size) + slot_bytes * number;
}

Box& Segment::box(int from, int to) const {
    char* boxes = base_ + members_of(size) + slots_of(size);
    return reinterpret_cast<Box*>(boxes)[from * size + to];
}

void Segment::ring(int rank) const {
    Member& called = member(rank);
    called.rung.fetch_add(1);
    if (called.sleepers.load()) futex(called.rung, FUTEX_WAKE, INT_MAX, nullptr);
}

void Segment::ring_all() const {
    for (int rank = 0; rank < size; ++rank) ring(rank);
}

void Segment::sleep(int rank, std::uint32_t seen) const {
    Member& own = member(rank);
    own.sleepers.fetch_add(1);
    futex(own.rung, FUTEX_WAIT, seen, &nap);
    own.sleepers.fetch_sub(1);
}

bool Segment::is_alive(int rank) const {
    const Who& who = member(rank).who;
    return started(who.process) == who.started;
}

std::uint64_t started(int process) {
    std::string line;
    std::getline(std::ifstream("/proc/" + std::to_string(process) + "/stat"), line);
    // The name of the program, in brackets, may have spaces and brackets itself.
    const std::size_t name = line.rfind(')');
    if (name == std::string::npos) return 0;
    std::istringstream fields(line.substr(name + 1));
    std::string state, skipped;
    fields >> state;
    if (state == "Z" || state == "X") return 0;
    for (int field = 4; field < 22; ++field) fields >> skipped;
    std::uint64_t ticks = 0;
    fields >> ticks;
    return ticks;
}

}  // namespace emulated_nccl
