// memory_watch.h: whether the system has ended processes for want of memory, and what the limit is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/result.h"

namespace sgpu {

// Whether a process that was killed was killed for want of memory.
enum class OutOfMemory {
    unknown,  // the system does not count
    no,
    likely,  // somebody's process was, on this machine
    yes,     // a process of our cgroup was
};

// What is known about the memory of a process that has ended. Sizes in bytes; 0: not known, or
// none.
struct MemoryEnd {
    OutOfMemory verdict = OutOfMemory::unknown;
    std::uint64_t limit = 0;  // of the cgroup
    std::uint64_t peak = 0;   // the most that the process has held

    friend bool operator==(const MemoryEnd&, const MemoryEnd&) = default;
};

// Reads the counters of the memory cgroup of this process (version 1 or 2), which the processes it
// starts share; where there is none, the machine's. The system counts before it kills, so whoever
// has seen such an end finds it counted.
//
// Threads: any; reading a counter costs a few microseconds.
class MemoryWatch {
public:
    // REQUIRES: `proc` and `cgroups` are folders laid out like /proc and /sys/fs/cgroup.
    explicit MemoryWatch(const std::string& proc = "/proc",
                         const std::string& cgroups = "/sys/fs/cgroup");

    // How many processes were ended so far. Nothing if the system does not count.
    std::optional<std::uint64_t> count() const;
    // What a count that has grown since `before` says about a process that was killed meanwhile.
    OutOfMemory verdict(std::optional<std::uint64_t> before,
                        std::optional<std::uint64_t> now) const;

    // The least limit of the cgroup and those above it, in bytes; 0 if there is none.
    std::uint64_t limit() const;
    // What is held where that limit is, in bytes; 0 if there is none, or it cannot be seen.
    std::uint64_t held() const;
    // Bytes that can still be had before the system has to end a process: what is free, can be
    // reclaimed or swapped out, in the cgroup, in those above it, and in the machine.
    std::uint64_t room() const;

private:
    std::vector<std::string> levels() const;

    std::string proc_;
    std::string counter_;  // a file with a line "oom_kill N"; "" if there is none
    std::string folder_;   // of the cgroup; "" if the counter is the machine's
    std::string top_;      // where folder_ lies
};

// Why `bytes` more are not to be taken: the error, with errno ENOMEM, that says how much room there
// is and what to do. Nothing if they fit. Small amounts are not looked at.
std::optional<Error> lack_of_memory(std::uint64_t bytes, const MemoryWatch& watch = MemoryWatch());

}  // namespace sgpu
