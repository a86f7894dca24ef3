// doctor_system.cpp: what the system grants, read and judged.
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "runtime/doctor.h"
#include "runtime/memory_watch.h"

namespace sgpu {
namespace {

using Level = Check::Level;

constexpr std::uint64_t kMega = 1'000'000;
constexpr std::uint64_t kGiga = 1'000 * kMega;
// NCCL takes some 10 MB of shared memory for each pair of ranks without peer access, DataLoader
// workers a batch each. A container has 64 MB unless it is given more.
constexpr std::uint64_t kFewShm = kGiga;
constexpr std::uint64_t kTooFewShm = 32 * kMega;
constexpr std::uint64_t kFewFiles = 1024;
constexpr std::uint64_t kTooFewFiles = 256;
constexpr std::uint64_t kProcessesOfARank = 64;  // threads count as processes
constexpr std::uint64_t kMemoryOfARank = kGiga;

std::string amount(std::optional<std::uint64_t> count) {
    return count ? std::to_string(*count) : "unlimited";
}

std::string size(std::uint64_t bytes) {
    if (bytes < kGiga) return std::to_string(bytes / kMega) + " MB";
    const auto tenths = bytes * 10 / kGiga;
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " GB";
}

std::optional<std::uint64_t> limit(__rlimit_resource_t what) {
    rlimit found{};
    if (::getrlimit(what, &found) != 0 || found.rlim_cur == RLIM_INFINITY) return std::nullopt;
    return found.rlim_cur;
}

// The tightest limit of this process's control group and of those above it, and what is held there.
// One above the machine's memory limits nothing.
void read_cgroup(SystemFacts& facts) {
    const MemoryWatch watch;
    const auto least = watch.limit();
    if (least == 0 || least >= facts.memory_bytes) return;
    facts.memory_limit_bytes = least;
    if (const auto held = watch.held(); held != 0) facts.memory_used_bytes = held;
}

void check_shm(const DoctorFacts& facts, std::vector<Check>& checks) {
    const auto total = facts.system.shm_bytes;
    if (!total) {
        checks.push_back({Level::error, "shared memory", "there is no /dev/shm",
                          "mount a tmpfs there: NCCL and DataLoader workers need it"});
        return;
    }
    const auto free = facts.system.shm_free_bytes.value_or(*total);
    const std::string text = size(free) + " of " + size(*total) + " free in /dev/shm";
    const std::string advice =
        "give the container more: docker run --shm-size=8g, or an emptyDir of medium Memory";
    const Level level = free < kTooFewShm ? Level::error
                        : free < kFewShm  ? Level::warning
                                          : Level::ok;
    checks.push_back({level, "shared memory", text, level == Level::ok ? "" : advice});
}

void check_limits(const DoctorFacts& facts, std::vector<Check>& checks) {
    const SystemFacts& system = facts.system;
    const std::string text = "open files " + amount(system.open_files) + ", processes " +
                             amount(system.processes) + ", locked memory " +
                             (system.locked_bytes ? size(*system.locked_bytes) : "unlimited");
    const auto few = [](std::optional<std::uint64_t> have, std::uint64_t need) {
        return have && *have < need;
    };
    const auto processes = kProcessesOfARank * static_cast<std::uint64_t>(facts.ranks);
    if (few(system.open_files, kTooFewFiles))
        checks.push_back({Level::error, "limits", text, "raise `ulimit -n` to 4096 or more"});
    else if (few(system.processes, processes))
        checks.push_back({Level::error, "limits", text,
                          "raise `ulimit -u` to " + std::to_string(4 * processes) + " or more"});
    else if (few(system.open_files, kFewFiles) || few(system.processes, 4 * processes))
        checks.push_back(
            {Level::warning, "limits", text,
             "raise `ulimit -n` to 4096 and `ulimit -u` to " + std::to_string(4 * processes)});
    else
        checks.push_back({Level::ok, "limits", text, ""});
}

void check_memory(const DoctorFacts& facts, std::vector<Check>& checks) {
    const SystemFacts& system = facts.system;
    const auto total = system.memory_limit_bytes.value_or(system.memory_bytes);
    std::string text = size(total) +
                       (system.memory_limit_bytes ? " for this container" : " of memory") + ", " +
                       std::to_string(system.cores) + (system.cores == 1 ? " core" : " cores");
    if (system.memory_limit_bytes && system.memory_used_bytes)
        text += ", " + size(*system.memory_used_bytes) + " in use";
    const bool few = total < kMemoryOfARank * static_cast<std::uint64_t>(facts.ranks);
    checks.push_back(
        {few ? Level::warning : Level::ok, "memory", text,
         few ? "ranks may be killed for memory: raise the limit, or use fewer ranks" : ""});
}

}  // namespace

SystemFacts read_system_facts() {
    SystemFacts facts;
    struct statvfs shm {};
    if (::statvfs("/dev/shm", &shm) == 0) {
        facts.shm_bytes = static_cast<std::uint64_t>(shm.f_blocks) * shm.f_frsize;
        facts.shm_free_bytes = static_cast<std::uint64_t>(shm.f_bavail) * shm.f_frsize;
    }
    facts.open_files = limit(RLIMIT_NOFILE);
    facts.locked_bytes = limit(RLIMIT_MEMLOCK);
    facts.processes = limit(RLIMIT_NPROC);
    facts.memory_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    cpu_set_t cores;
    CPU_ZERO(&cores);
    facts.cores = ::sched_getaffinity(0, sizeof cores, &cores) == 0
                      ? CPU_COUNT(&cores)
                      : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
    read_cgroup(facts);
    return facts;
}

void check_system(const DoctorFacts& facts, std::vector<Check>& checks) {
    check_shm(facts, checks);
    check_limits(facts, checks);
    check_memory(facts, checks);
}

}  // namespace sgpu
