#include "faults.h"

#include "errors.h"
#include "settings.h"

#include "emulated.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

namespace emulated_nccl {

namespace {

constexpr int any_rank = -1;
constexpr double for_ever = std::numeric_limits<double>::infinity();

// One entry of EMULATED_NCCL_FAULTS, such as rank=1,function=ncclAllReduce,nth=3,do=fail:2
struct Wanted {
    std::string function;  // empty: any
    int rank = any_rank;
    long nth = 1;
    bool from_then_on = false;  // nth=3+
    Fault fault{Fault::fail, false, ncclSuccess, 0.0};
    long calls = 0;
};

struct Faults {
    std::mutex mutex;
    bool is_read = false;
    std::vector<Wanted> wanted;
};

Faults& all_faults() {
    static Faults& made = *new Faults;
    return made;
}

// do=fail:2, async:6, slow:0.5, hang or die; with "-job" behind the word it is the job that does.
Fault parse_fault(const std::string& text) {
    const std::size_t colon = text.find(':');
    std::string word = text.substr(0, colon);
    const std::string value = colon == std::string::npos ? "" : text.substr(colon + 1);
    Fault fault{Fault::fail, false, ncclSuccess, 0.0};
    const std::string job = "-job";
    if (word.size() > job.size() && word.substr(word.size() - job.size()) == job) {
        fault.in_job = true;
        word.resize(word.size() - job.size());
    }
    const std::map<std::string, Fault::What> words{{"fail", Fault::fail},
                                                   {"slow", Fault::slow},
                                                   {"hang", Fault::hang},
                                                   {"die", Fault::die},
                                                   {"async", Fault::asynchronous}};
    const auto found = words.find(word);
    if (found == words.end()) {
        complain("EMULATED_NCCL_FAULTS: there is no do=%s", text.c_str());
        std::exit(2);
    }
    fault.what = found->second;
    fault.code = static_cast<ncclResult_t>(std::atoi(value.c_str()));
    fault.seconds = std::atof(value.c_str());
    return fault;
}

Wanted parse_one(const std::string& entry) {
    Wanted wanted;
    std::istringstream parts(entry);
    for (std::string part; std::getline(parts, part, ',');) {
        const std::size_t equals = part.find('=');
        const std::string name = part.substr(0, equals);
        const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
        if (name == "function") wanted.function = value;
        else if (name == "rank") wanted.rank = std::atoi(value.c_str());
        else if (name == "do") wanted.fault = parse_fault(value);
        else if (name == "nth") {
            wanted.nth = std::atol(value.c_str());
            wanted.from_then_on = !value.empty() && value.back() == '+';
        } else {
            complain("EMULATED_NCCL_FAULTS: there is no %s", part.c_str());
            std::exit(2);
        }
    }
    return wanted;
}

std::vector<Wanted> parse(const std::string& text) {
    std::vector<Wanted> all;
    std::istringstream entries(text);
    for (std::string entry; std::getline(entries, entry, ';');)
        if (!entry.empty()) all.push_back(parse_one(entry));
    return all;
}

std::vector<Fault> due(const std::string& function, int rank) {
    Faults& faults = all_faults();
    const std::lock_guard<std::mutex> guard(faults.mutex);
    if (!faults.is_read) {
        const char* text = std::getenv("EMULATED_NCCL_FAULTS");
        faults.wanted = parse(text ? text : "");
        faults.is_read = true;
    }
    std::vector<Fault> found;
    for (Wanted& wanted : faults.wanted) {
        if (!wanted.function.empty() && wanted.function != function) continue;
        if (wanted.rank != any_rank && wanted.rank != rank) continue;
        ++wanted.calls;
        if (wanted.calls == wanted.nth || (wanted.from_then_on && wanted.calls > wanted.nth))
            found.push_back(wanted.fault);
    }
    return found;
}

void die() {
    kill(getpid(), SIGKILL);
    pause();
}

}  // namespace

Call::Call(const char* function, int rank, int since, const std::atomic<bool>* aborted) {
    if (const int code = emulated_begin(function)) {
        // Other codes are CUDA's, of a device that is lost.
        const bool is_own = code < ncclNumResults;
        result = is_own ? warn(static_cast<ncclResult_t>(code), "%s failed", function)
                        : cuda_result(code);
        return;
    }
    if (version() < since) {
        complain("%s is not in NCCL %d, but since %d", function, version(), since);
        result = warn(ncclInvalidUsage, "%s is not in NCCL %d", function, version());
        return;
    }
    for (const Fault& fault : due(function, rank)) {
        if (fault.in_job || fault.what == Fault::asynchronous) left.push_back(fault);
        else if (fault.what == Fault::fail)
            result = warn(fault.code, "%s : failed, as EMULATED_NCCL_FAULTS asks", function);
        else if (fault.what == Fault::die) die();
        else pause_for(fault.what == Fault::hang ? for_ever : fault.seconds, aborted);
    }
}

void suffer(const std::vector<Fault>& faults, const std::atomic<bool>& aborted) {
    for (const Fault& fault : faults) {
        if (!fault.in_job) continue;
        if (fault.what == Fault::die) die();
        if (fault.what == Fault::hang) pause_for(for_ever, &aborted);
        if (fault.what == Fault::slow) pause_for(fault.seconds, &aborted);
    }
}

void pause_for(double seconds, const std::atomic<bool>* aborted) {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    const auto gone = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    while (gone() < seconds && !(aborted && *aborted))
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

}  // namespace emulated_nccl

// For tests: ask for faults now, as EMULATED_NCCL_FAULTS does at the start.
extern "C" void emulated_nccl_faults(const char* text) {
    using namespace emulated_nccl;
    Faults& faults = all_faults();
    const std::lock_guard<std::mutex> guard(faults.mutex);
    faults.wanted = parse(text);
    faults.is_read = true;
}
