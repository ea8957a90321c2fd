#include "settings.h"

#include <nccl.h>
#include <strings.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace emulated_nccl {

namespace {

long number(const char* variable, long otherwise) {
    const char* text = std::getenv(variable);
    return text && *text ? std::strtol(text, nullptr, 0) : otherwise;
}

// NCCL_NO_CACHE names parameters that are read each time, or ALL.
bool is_read_each_time(const std::string& variable) {
    constexpr int since = 22907;
    static const std::string named = [] {
        const char* text = std::getenv("NCCL_NO_CACHE");
        return std::string(",") + (text && version() >= since ? text : "") + ",";
    }();
    return named == ",ALL," || named.find("," + variable + ",") != std::string::npos;
}

std::string this_host() {
    if (const char* id = std::getenv("NCCL_HOSTID")) return id;
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    std::string boot;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
    return name + boot;
}

Debug read_debug_level() {
    const char* text = std::getenv("NCCL_DEBUG");
    if (!text) return Debug::none;
    if (!strcasecmp(text, "VERSION")) return Debug::version;
    if (!strcasecmp(text, "WARN")) return Debug::warn;
    for (const char* more : {"INFO", "ABORT", "TRACE"})
        if (!strcasecmp(text, more)) return Debug::info;
    return Debug::none;
}

}  // namespace

int version() {
    static const int read = static_cast<int>(number("EMULATED_NCCL_VERSION", NCCL_VERSION_CODE));
    return read;
}

double seconds(const char* variable) {
    const char* text = std::getenv(variable);
    return text ? std::strtod(text, nullptr) : 0.0;
}

long parameter(const char* variable, long otherwise) {
    static std::mutex& mutex = *new std::mutex;
    static auto& known = *new std::map<std::string, long>;
    const std::lock_guard<std::mutex> guard(mutex);
    const auto found = known.find(variable);
    if (found != known.end()) return found->second;
    const long value = number(variable, otherwise);
    if (!is_read_each_time(variable)) known[variable] = value;
    return value;
}

std::uint64_t host_hash() {
    static const std::uint64_t hash = std::hash<std::string>()(this_host());
    return hash;
}

Debug debug_level() {
    static const Debug level = read_debug_level();
    return level;
}

bool explains() {
    static const bool read = number("EMULATED_NCCL_EXPLAIN", 0) == 1;
    return read;
}

}  // namespace emulated_nccl
