// nvml.h: the machine's GPUs, as NVIDIA's driver tells of them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/gpu/events.h"
#include "runtime/gpu/nvml_api.h"

namespace sgpu {

// A part of a GPU in MIG mode, which CUDA takes for a device of its own.
struct MigSlice {
    std::string uuid;  // "MIG-…"
    std::uint64_t memory_bytes = 0;
};

// What stays as long as the driver is loaded.
struct GpuInfo {
    int index = 0;        // in the order of PCI buses, as nvidia-smi counts
    std::string problem;  // "" if the GPU answers; else what the driver says, and only
                          // `index` is known
    std::string name;     // "NVIDIA H100 80GB HBM3"
    std::string uuid;     // "GPU-…"
    std::string pci;      // "00000000:1B:00.0"
    std::uint64_t memory_bytes = 0;
    bool mig = false;
    std::vector<MigSlice> slices;  // of a GPU in MIG mode; may be empty
    bool exclusive = false;        // takes one process at a time (compute mode)
    bool prohibited = false;       // takes no process at all (compute mode)
    int nvlinks = 0;               // that are up
    int nvlink_version = 0;        // of the first that is up: 4 is NVLink 4
    int pcie_generation = 0;       // 0: not known
    int pcie_width = 0;            // lanes; 0: not known
};

struct GpuProcess {
    pid_t pid = 0;  // in the driver's view: of no meaning in a container with its own numbers
    std::optional<std::uint64_t> bytes;
};

// A look at one GPU. What the GPU does not report is absent.
struct GpuReading {
    std::string problem;  // "" if the GPU answers
    std::optional<std::uint64_t> used_bytes;
    std::optional<std::uint64_t> total_bytes;
    std::optional<unsigned> busy_percent;  // of the last moments in which a kernel ran
    std::optional<unsigned> celsius;
    std::optional<double> watts;
    std::optional<double> watts_limit;
    std::optional<std::uint64_t> ecc_errors;  // uncorrected, since the driver was loaded
    bool rows_pending = false;                // bad memory rows wait for a reset to be replaced
    bool rows_failed = false;                 // bad memory rows that cannot be replaced any more
    std::vector<GpuProcess> processes;        // that have a CUDA context
};

// How two GPUs reach each other over PCI, nearest first.
enum class Ancestor { same_board, one_switch, switches, host_bridge, numa_node, system, unknown };

// The library, loaded and initialised. Destroying it tells the library that it is done with.
//
// Threads: any; the library has locks of its own.
// Blocks: init up to seconds where the driver does not keep itself awake (persistence mode off).
class Nvml {
public:
    explicit Nvml(const nvml::Api& api) : api_(api) {}
    ~Nvml();
    Nvml(const Nvml&) = delete;
    Nvml& operator=(const Nvml&) = delete;

    std::string driver_version() const;  // "580.65.06"; "" if it is not told
    int cuda_version() const;           // the newest CUDA the driver runs: 13000 is 13.0; 0 unknown
    std::vector<GpuInfo> gpus() const;  // in order of index
    GpuReading read(int index) const;
    GpuReading read_memory(int index) const;  // memory and processes alone, which is quicker
    Ancestor ancestor(int first, int second) const;
    std::unique_ptr<GpuEvents> events() const;  // from now on, of all GPUs; this must outlive it

private:
    std::string text_of(int code) const;
    GpuInfo info(int index) const;
    void add_slices(nvml::Device device, GpuInfo& info) const;
    void add_links(nvml::Device device, GpuInfo& info) const;
    void add_health(nvml::Device device, GpuReading& reading) const;
    std::vector<GpuProcess> processes(nvml::Device device) const;

    const nvml::Api api_;
};

// What looking for a driver came to.
struct FoundDriver {
    enum class State {
        ready,   // nvml is there
        absent,  // no NVIDIA GPU here; or a container that was given none
        broken,  // a GPU that cannot be used: `problem` says why, and what to do
    };
    State state = State::absent;
    std::string problem;
    std::unique_ptr<Nvml> nvml;
};

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

// `root` is where /dev and /proc are, for tests. A container that was given no GPU sees the host's
// /proc/driver/nvidia too, so without the library that folder alone means nothing.
FoundDriver find_driver(const std::string& library = kNvmlLibrary, const std::string& root = "");

}  // namespace sgpu
