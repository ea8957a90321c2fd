#include "config.h"

#include "errors.h"
#include "settings.h"

#include <algorithm>
#include <cstring>

namespace emulated_nccl {

namespace {

bool is_set(int value) {
    return value != NCCL_CONFIG_UNDEF_INT;
}

bool is_flag(int value) {
    return !is_set(value) || value == 0 || value == 1;
}

ncclResult_t invalid(const char* what, int value) {
    return warn(ncclInvalidArgument, "Invalid config %s attribute value %d", what, value);
}

ncclResult_t check(const ncclConfig_t& config) {
    if (!is_flag(config.blocking)) return invalid("blocking", config.blocking);
    if (is_set(config.cgaClusterSize) && config.cgaClusterSize < 0)
        return invalid("cgaClusterSize", config.cgaClusterSize);
    // NCCL compares the two even where one is not set: a minimum alone is invalid.
    if ((is_set(config.minCTAs) && config.minCTAs <= 0) ||
        (is_set(config.maxCTAs) && config.maxCTAs <= 0) || config.minCTAs > config.maxCTAs)
        return warn(ncclInvalidArgument, "Invalid config min/max channels attribute value %d/%d",
                    config.minCTAs, config.maxCTAs);
    if (!is_flag(config.splitShare)) return invalid("splitShare", config.splitShare);
    if (!is_flag(config.collnetEnable)) return invalid("collnetEnable", config.collnetEnable);
    if (!is_flag(config.shrinkShare)) return invalid("shrinkShare", config.shrinkShare);
    if (is_set(config.nvlsCTAs) && config.nvlsCTAs <= 0)
        return invalid("nvlsCTAs", config.nvlsCTAs);
    return ncclSuccess;
}

// Take what the caller's version of the structure has; the rest stays as it is by default.
ncclResult_t copy(const ncclConfig_t* from, ncclConfig_t& to) {
    std::size_t size;
    std::memcpy(&size, from, sizeof size);
    to.magic = 0;
    std::memcpy(&to, from, std::min(size, sizeof to));
    if (to.magic == 0xcafebeef) return ncclSuccess;
    return warn(ncclInvalidArgument,
                "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
}

}  // namespace

ncclResult_t read_config(const ncclConfig_t* config, bool& blocking, bool parent) {
    ncclConfig_t own = NCCL_CONFIG_INITIALIZER;
    own.blocking = parent;
    if (config) {
        own.blocking = NCCL_CONFIG_UNDEF_INT;
        if (const ncclResult_t result = copy(config, own)) return result;
        if (const ncclResult_t result = check(own)) return result;
    }
    blocking = own.blocking != 0;
    const long forced = parameter("NCCL_COMM_BLOCKING", NCCL_CONFIG_UNDEF_INT);
    if (forced == 0 || forced == 1) blocking = forced;
    return ncclSuccess;
}

}  // namespace emulated_nccl
