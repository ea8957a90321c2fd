// The table of live memory, and memory of devices and of the host that the runtime gives out.
//
// Each block is a mapping of its own between two pages that nobody may touch, and ends at the
// second one (but for the alignment), so that a kernel that runs over its end faults at once.
// Freed memory is unmapped: a later touch faults too.
//
// Rules from "CUDA Runtime API", Memory Management.
#include "blocks.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

namespace emulated {
namespace {

using Address = std::uintptr_t;

constexpr std::size_t page = 4096;
// cudaMalloc aligns to 256 bytes at least; CuPy's pool wants 512, and has them of every GPU.
constexpr std::size_t alignment = 512;
constexpr std::size_t most = std::size_t{1} << 46;       // of addresses that a process has
constexpr unsigned char poison = 0xA5;
constexpr std::size_t poisoned = 4 << 20;

struct Mapped {
    Block block;
    Address pages;               // 0 for registered memory, which is not ours
    std::size_t length;          // of the pages between the two that guard them
    bool leaving = false;        // freed in the order of a stream that has not come to it
};

struct Table {
    std::mutex mutex;
    std::map<Address, Mapped> live;
    std::vector<std::size_t> used = std::vector<std::size_t>(static_cast<std::size_t>(devices()));
};

Table& table() {
    static Table& made = *new Table;
    return made;
}

constexpr std::size_t rounded(std::size_t size, std::size_t to) {
    return (size + to - 1) / to * to;
}

// A file that is poison throughout.  Private mappings of it cost nothing until they are written.
int poison_file() {
    static const int file = [] {
        const int made = memfd_create("emulated poison", MFD_CLOEXEC);
        const std::vector<unsigned char> bytes(poisoned, poison);
        if (made >= 0 && write(made, bytes.data(), poisoned) == static_cast<ssize_t>(poisoned))
            return made;
        std::perror("emulated: no file for fresh memory");
        std::_Exit(2);
    }();
    return file;
}

// Return the first page of fresh memory; 0 where the machine has no more.
Address map_pages(std::size_t length, int protection) {
    void* whole = mmap(nullptr, length + 2 * page, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) return 0;
    const Address begin = reinterpret_cast<Address>(whole) + page;
    for (std::size_t done = 0; done < length; done += poisoned) {
        void* at = reinterpret_cast<void*>(begin + done);
        const std::size_t part = length - done < poisoned ? length - done : poisoned;
        if (mmap(at, part, protection, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, poison_file(), 0)
            != MAP_FAILED) continue;
        munmap(whole, length + 2 * page);
        return 0;
    }
    return begin;
}

Kind blocks_of(Memory kind) { return kind == Memory::pinned ? pinned_blocks : device_blocks; }
Kind bytes_of(Memory kind) { return kind == Memory::pinned ? pinned_bytes : device_bytes; }

void count_block(const Block& block, long sign) {
    if (block.kind == Memory::registered) return;
    count(blocks_of(block.kind), sign);
    count(bytes_of(block.kind), sign * static_cast<long>(block.size));
}

bool is_of_device(Memory kind) { return kind == Memory::device || kind == Memory::managed; }

// Find the entry whose memory, as it was asked for, has an address; the table's lock is held.
const Mapped* at(Address address) {
    auto after = table().live.upper_bound(address);
    if (after == table().live.begin()) return nullptr;
    const Mapped& mapped = std::prev(after)->second;
    const bool inside = address - mapped.block.begin < mapped.block.size;
    return inside && !mapped.leaving ? &mapped : nullptr;
}

}  // namespace

std::size_t memory_of_device() {
    static const std::size_t bytes = [] {
        const char* value = std::getenv("EMULATED_MEMORY");
        if (!value) return std::size_t{4096} << 20;
        char* end = nullptr;
        const long number = std::strtol(value, &end, 10);
        if (end != value && !*end && number > 0) return static_cast<std::size_t>(number) << 20;
        std::fprintf(stderr, "emulated: EMULATED_MEMORY is '%s', no number of MiB\n", value);
        std::_Exit(2);
    }();
    return bytes;
}

std::size_t free_memory(int device) {
    const std::lock_guard<std::mutex> hold(table().mutex);
    return memory_of_device() - table().used[static_cast<std::size_t>(device)];
}

cudaError_t map_block(void** memory, std::size_t size, int device, Memory kind) {
    if (size > most) return cudaErrorMemoryAllocation;
    const std::size_t need = rounded(size, alignment), length = rounded(need, page);
    const std::lock_guard<std::mutex> hold(table().mutex);
    std::size_t& used = table().used[static_cast<std::size_t>(device)];
    const bool limited = is_of_device(kind);
    if (limited && length > memory_of_device() - used) return cudaErrorMemoryAllocation;
    const bool guarded = kind == Memory::device;
    const Address pages = map_pages(length, guarded ? fresh_protection() : PROT_READ | PROT_WRITE);
    if (!pages) return cudaErrorMemoryAllocation;
    if (limited) used += length;
    const Block block{pages + length - need, size, device, kind};
    table().live[block.begin] = {block, pages, length};
    count_block(block, 1);
    *memory = reinterpret_cast<void*>(block.begin);
    return cudaSuccess;
}

cudaError_t register_block(void* memory, std::size_t size, int device) {
    const Address begin = reinterpret_cast<Address>(memory);
    const std::lock_guard<std::mutex> hold(table().mutex);
    const auto next = table().live.lower_bound(begin);
    const bool meets = next != table().live.end() && next->first - begin < size;
    if (at(begin) || meets) return cudaErrorHostMemoryAlreadyRegistered;
    table().live[begin] = {{begin, size, device, Memory::registered}, 0, 0};
    return cudaSuccess;
}

bool find_beginning(const void* memory, Block& block) {
    const std::lock_guard<std::mutex> hold(table().mutex);
    const auto found = table().live.find(reinterpret_cast<Address>(memory));
    if (found == table().live.end() || found->second.leaving) return false;
    block = found->second.block;
    return true;
}

bool retire_block(const void* memory) {
    const std::lock_guard<std::mutex> hold(table().mutex);
    const auto found = table().live.find(reinterpret_cast<Address>(memory));
    if (found == table().live.end() || found->second.leaving) return false;
    found->second.leaving = true;
    return true;
}

bool remove_block(const void* memory) {
    const std::lock_guard<std::mutex> hold(table().mutex);
    const auto found = table().live.find(reinterpret_cast<Address>(memory));
    if (found == table().live.end()) return false;
    const Mapped mapped = found->second;
    table().live.erase(found);
    count_block(mapped.block, -1);
    if (is_of_device(mapped.block.kind))
        table().used[static_cast<std::size_t>(mapped.block.device)] -= mapped.length;
    if (mapped.pages) {
        forget_pages(mapped.pages, mapped.pages + mapped.length);
        munmap(reinterpret_cast<void*>(mapped.pages - page), mapped.length + 2 * page);
    }
    return true;
}

bool find(const void* pointer, std::size_t bytes, Block& block) {
    const Address address = reinterpret_cast<Address>(pointer);
    const std::lock_guard<std::mutex> hold(table().mutex);
    const Mapped* mapped = at(address);
    if (!mapped || bytes > mapped->block.size - (address - mapped->block.begin)) return false;
    block = mapped->block;
    return true;
}

bool find_pages(std::uintptr_t address, std::uintptr_t& begin, std::uintptr_t& end) {
    const std::lock_guard<std::mutex> hold(table().mutex);
    auto after = table().live.upper_bound(address + page);  // a block begins in its first page
    if (after == table().live.begin()) return false;
    const Mapped& mapped = std::prev(after)->second;
    begin = mapped.pages;
    end = mapped.pages + mapped.length;
    return mapped.block.kind == Memory::device && address >= begin && address < end;
}

bool meets_any(const void* pointer, std::size_t bytes) {
    const Address begin = reinterpret_cast<Address>(pointer), end = begin + bytes;
    const std::lock_guard<std::mutex> hold(table().mutex);
    for (auto next = table().live.lower_bound(end + 2 * page); next != table().live.begin();) {
        const Mapped& mapped = (--next)->second;
        const Block& block = mapped.block;
        const Address low = mapped.pages ? mapped.pages - page : block.begin;
        const Address high = mapped.pages ? mapped.pages + mapped.length + page
                                          : block.begin + block.size;
        if (high <= begin) return false;
        if (low < end) return true;
    }
    return false;
}

bool is_on_device(const void* pointer, std::size_t bytes) {
    Block block;
    return find(pointer, bytes, block) && is_of_device(block.kind);
}

std::string describe(std::uintptr_t address) {
    const std::lock_guard<std::mutex> hold(table().mutex);
    for (const auto& [begin, mapped] : table().live) {
        const bool near = mapped.pages && address >= mapped.pages - page
                          && address < mapped.pages + mapped.length + page;
        if (!near) continue;
        const auto from_begin = static_cast<long long>(address - begin);
        return "byte " + std::to_string(from_begin) + " of a block of "
               + std::to_string(mapped.block.size) + " bytes";
    }
    return "in no live block";
}

}  // namespace emulated
