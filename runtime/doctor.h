// doctor.h: is this machine fit for ranks? Facts in, lines out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/gpu/nvml.h"
#include "runtime/gpu/occupants.h"

namespace sgpu {

// What the operating system grants this process. Absent: without limit, or not told.
struct SystemFacts {
    std::optional<std::uint64_t> shm_bytes;  // of /dev/shm, in all
    std::optional<std::uint64_t> shm_free_bytes;
    std::optional<std::uint64_t> open_files;          // ulimit -n
    std::optional<std::uint64_t> locked_bytes;        // ulimit -l
    std::optional<std::uint64_t> processes;           // ulimit -u
    std::optional<std::uint64_t> memory_limit_bytes;  // of the control group
    std::optional<std::uint64_t> memory_used_bytes;   // by the control group
    std::uint64_t memory_bytes = 0;                   // of the machine
    int cores = 0;                                    // that this process may use
};

struct GpuFacts {
    GpuInfo info;
    GpuReading reading;
    std::vector<Occupant> others;  // that are not of this notebook
};

struct DriverFacts {
    FoundDriver::State state = FoundDriver::State::absent;
    std::string problem;
    std::string version;
    int cuda_version = 0;                   // 13000 is 13.0
    int hidden = 0;                         // GPUs that CUDA_VISIBLE_DEVICES hides
    std::vector<GpuFacts> gpus;             // that are visible, in CUDA's order
    Ancestor farthest = Ancestor::unknown;  // between any two of them
};

// An all-reduce over all ranks.
struct AllReduceFacts {
    bool tried = false;
    std::string error;  // "" if it gave the right sum
    int ranks = 0;
    std::string backend;
    std::string nccl;  // version; "" without
    std::uint64_t bytes = 0;
    double seconds = 0;  // for each of several in a row, after others to warm up
};

// Something outside of ours: how it is, and what keeps it from working ("" if nothing).
struct PartFacts {
    std::string text;
    std::string problem;
    std::string advice;
};

struct SoftwareFacts {
    std::string python;
    std::string torch;       // version; "" if it cannot be imported
    std::string torch_cuda;  // "13.0"; "" for a build without CUDA
    PartFacts kernelspec;
    PartFacts jupyter;
    PartFacts mlflow;
};

struct DoctorFacts {
    SystemFacts system;
    DriverFacts driver;
    SoftwareFacts software;
    AllReduceFacts all_reduce;
    int ranks = 0;  // that a call has by default
};

struct Check {
    enum class Level { ok, warning, error };
    Level level = Level::ok;
    std::string name;    // what was looked at: "driver", "GPU 3", "shared memory"
    std::string text;    // what was found, one line
    std::string advice;  // what to do; "" if nothing
    friend bool operator==(const Check&, const Check&) = default;
};

// Pure. An error keeps ranks from working, a warning may.
std::vector<Check> diagnose(const DoctorFacts& facts);

// Gigabytes a second that one GPU can send over its links, in one direction; 0 if not known.
double link_speed(const GpuInfo& gpu);

// Reads /proc, /sys and the limits of this process. Never fails: what cannot be read is absent.
SystemFacts read_system_facts();

// Parts of diagnose.
void check_system(const DoctorFacts& facts, std::vector<Check>& checks);
void check_gpus(const DoctorFacts& facts, std::vector<Check>& checks);
void check_all_reduce(const DoctorFacts& facts, std::vector<Check>& checks);

}  // namespace sgpu
