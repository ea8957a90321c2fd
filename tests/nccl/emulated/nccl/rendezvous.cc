#include "rendezvous.h"

#include "errors.h"
#include "settings.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

namespace emulated_nccl {

namespace {

constexpr int poll_milliseconds = 10;
constexpr char magic[] = "emulated";

// What a unique id holds.  The socket's name is an abstract one: nothing of it is in a file system.
struct Identity {
    char magic[sizeof emulated_nccl::magic];
    char name[80];
    std::uint64_t secret;
};
static_assert(sizeof(Identity) <= sizeof(ncclUniqueId));

struct Hello {
    std::uint64_t secret;
    std::int32_t size;
    Who who;
};

class Descriptor {
public:
    explicit Descriptor(int number) : number_(number) {}
    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~Descriptor() {
        if (number_ >= 0) close(number_);
    }
    int get() const { return number_; }
    int release() { return std::exchange(number_, -1); }

private:
    int number_;
};

socklen_t address_of(const char* name, sockaddr_un& address) {
    address = {};
    address.sun_family = AF_UNIX;
    const std::size_t length = strnlen(name, sizeof Identity::name);
    std::memcpy(address.sun_path + 1, name, length);  // the zero before it makes it abstract
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

bool send_descriptor(int socket, int descriptor) {
    char byte = 0;
    iovec data{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

// Return the descriptor that came, or -1 where the other end was closed.
int receive_descriptor(int socket) {
    char byte = 0;
    iovec data{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_RIGHTS) return -1;
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    return descriptor;
}

// One rank comes; false for what NCCL's bootstrap root ends with, so that all ranks hang.
bool check_in(const Hello& hello, Descriptor socket, std::vector<Descriptor>& sockets,
              std::vector<Who>& ranks) {
    if (sockets.empty())
        for (int rank = 0; rank < hello.size; ++rank) sockets.emplace_back(-1);
    ranks.resize(sockets.size());
    const int size = static_cast<int>(sockets.size());
    if (hello.size != size) {
        warn(ncclInternalError, "Bootstrap Root : mismatch in info from procs, nranks %d vs %d",
             size, hello.size);
        return false;
    }
    const auto rank = static_cast<std::size_t>(hello.who.rank);
    if (sockets[rank].get() >= 0) {
        warn(ncclInternalError, "Bootstrap Root : rank %d of %d ranks has already checked in",
             hello.who.rank, size);
        return false;
    }
    sockets[rank] = std::move(socket);
    ranks[rank] = hello.who;
    return true;
}

// Give all ranks the same new memory.  One that has died meanwhile is missed in the collectives.
void introduce(const std::vector<Descriptor>& sockets, const std::vector<Who>& ranks) {
    const int size = static_cast<int>(ranks.size());
    const Descriptor memory(Segment::create(size));
    if (memory.get() < 0) return;
    const int copy = fcntl(memory.get(), F_DUPFD_CLOEXEC, 0);
    const auto segment = Segment::map(copy, size);
    if (!segment) return;
    for (int rank = 0; rank < size; ++rank)
        segment->member(rank).who = ranks[static_cast<std::size_t>(rank)];
    for (const Descriptor& socket : sockets) send_descriptor(socket.get(), memory.get());
}

void serve(Descriptor listener, std::uint64_t secret) {
    // Signals are for the threads of the program: one would end a read.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::vector<Descriptor> sockets;
    std::vector<Who> ranks;
    std::size_t come = 0;
    do {
        Descriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (socket.get() < 0) usleep(1000 * poll_milliseconds);  // too many are open
        Hello hello;
        if (recv(socket.get(), &hello, sizeof hello, MSG_WAITALL) != sizeof hello) continue;
        if (hello.secret != secret) continue;
        if (!check_in(hello, std::move(socket), sockets, ranks)) return;
        ++come;
    } while (come == 0 || come < ranks.size());
    // First: a rank that comes once the others are introduced is refused, and does not wait forever.
    listener = Descriptor(-1);
    introduce(sockets, ranks);
}

Who describe(const Communicator& comm, int rank) {
    Who who{};
    who.rank = rank;
    who.process = getpid();
    who.device = comm.device;
    who.version = version();
    who.started = started(getpid());
    who.host = host_hash();
    if (cudaDeviceGetPCIBusId(who.gpu, sizeof who.gpu, comm.device))
        std::snprintf(who.gpu, sizeof who.gpu, "device %d", comm.device);
    return who;
}

ncclResult_t connect_to(const Identity& identity, Descriptor& made) {
    sockaddr_un address;
    const socklen_t length = address_of(identity.name, address);
    made = Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (made.get() < 0)
        return warn(ncclSystemError, "Call to socket failed: %s", std::strerror(errno));
    if (connect(made.get(), reinterpret_cast<sockaddr*>(&address), length) == 0)
        return ncclSuccess;
    // NCCL tries for a minute before it says so.
    return warn(ncclRemoteError, "socketPollConnect: connect to %.80s returned %s", identity.name,
                std::strerror(errno));
}

// Wait for the memory.  A root that has gone answers nobody, and NCCL waits on.
int wait_for_memory(const Communicator& comm, Descriptor& socket) {
    pollfd waited{socket.get(), POLLIN, 0};
    while (!comm.aborted) {
        if (poll(&waited, 1, poll_milliseconds) <= 0) continue;
        const int memory = receive_descriptor(socket.get());
        if (memory >= 0) return memory;
        waited.fd = -1;
    }
    return -1;
}

ncclResult_t check_versions(const Segment& segment, int rank) {
    const std::int32_t own = segment.member(rank).who.version;
    for (int peer = 0; peer < segment.size; ++peer) {
        const std::int32_t other = segment.member(peer).who.version;
        if (other != own)
            return warn(ncclInvalidUsage,
                        "Mismatched NCCL version detected : rank %d version %d rank %d version %d",
                        peer, other, rank, own);
    }
    return ncclSuccess;
}

bool share_a_gpu(const Who& one, const Who& other) {
    return one.host == other.host && !std::strcmp(one.gpu, other.gpu);
}

ncclResult_t check_gpus(const Segment& segment) {
    constexpr int shares_gpus = 23003;
    if (segment.size == 1) return ncclSuccess;
    if (version() >= shares_gpus && parameter("NCCL_MULTI_RANK_GPU_ENABLE", 0)) return ncclSuccess;
    for (int rank = 0; rank < segment.size; ++rank) {
        for (int other = 0; other < rank; ++other) {
            const Who& who = segment.member(rank).who;
            if (!share_a_gpu(who, segment.member(other).who)) continue;
            if (version() >= shares_gpus)
                return warn(ncclInvalidUsage,
                            "Multiple Ranks are using the same GPU/Partition. Set "
                            "NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.");
            return warn(ncclInvalidUsage,
                        "Duplicate GPU detected : rank %d and rank %d both on CUDA device %s",
                        other, rank, who.gpu);
        }
    }
    return ncclSuccess;
}

ncclResult_t check_ranks(const Segment& segment, int rank) {
    const ncclResult_t result = check_versions(segment, rank);
    return result ? result : check_gpus(segment);
}

}  // namespace

ncclResult_t make_identity(ncclUniqueId& id) {
    Identity identity{};
    std::memcpy(identity.magic, magic, sizeof magic);
    std::uint64_t random[2];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return warn(ncclSystemError, "Call to getrandom failed: %s", std::strerror(errno));
    identity.secret = random[0];
    std::snprintf(identity.name, sizeof identity.name, "emulated-nccl-%d-%016llx", getpid(),
                  static_cast<unsigned long long>(random[1]));
    sockaddr_un address;
    const socklen_t length = address_of(identity.name, address);
    Descriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (listener.get() < 0 ||
        bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        listen(listener.get(), most_ranks) != 0)
        return warn(ncclSystemError, "Call to bind failed: %s", std::strerror(errno));
    std::thread(serve, std::move(listener), identity.secret).detach();
    id = {};
    std::memcpy(id.internal, &identity, sizeof identity);
    return ncclSuccess;
}

ncclResult_t join(Communicator& comm, const ncclUniqueId& id, int size, int rank) {
    Identity identity;
    std::memcpy(&identity, id.internal, sizeof identity);
    if (std::memcmp(identity.magic, magic, sizeof magic) != 0)
        return warn(ncclInternalError, "the unique id is none that ncclGetUniqueId made");
    Descriptor socket(-1);
    if (const ncclResult_t result = connect_to(identity, socket)) return result;
    const Hello hello{identity.secret, size, describe(comm, rank)};
    if (send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
        return warn(ncclRemoteError, "socketProgress: Connection closed by remote peer");
    const int memory = wait_for_memory(comm, socket);
    if (memory < 0) return ncclInternalError;
    const auto segment = Segment::map(memory, size);
    if (!segment) return warn(ncclSystemError, "Call to mmap failed: %s", std::strerror(errno));
    comm.begin(segment, rank);
    // Nobody goes on before all have the memory, whose giver might end.
    std::vector<Note> all;
    ncclResult_t result = ncclInternalError;
    if (comm.tell({Note::join, 0, 0, {}}, all)) result = check_ranks(*segment, rank);
    if (result) comm.begin(nullptr, 0);
    return result;
}

}  // namespace emulated_nccl
