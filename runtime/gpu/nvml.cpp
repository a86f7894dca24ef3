#include "runtime/gpu/nvml.h"

#include <array>
#include <filesystem>

namespace sgpu {
namespace {

using nvml::Device;

constexpr unsigned kTextSize = 96;  // what the library wants for names and UUIDs
constexpr unsigned kMaxNvlinks = 18;
constexpr unsigned kMaxProcesses = 4096;
constexpr int kTemperatureOfGpu = 0;
constexpr int kUncorrected = 1;
constexpr int kSinceDriverLoaded = 0;
constexpr int kModeProhibited = 2;
constexpr int kModeExclusive = 3;

template <class Read>
std::string text(Read read) {
    std::array<char, kTextSize> buffer{};
    return read(buffer.data(), kTextSize) == nvml::kSuccess ? std::string(buffer.data())
                                                            : std::string();
}

// The value that `function` gives for the device; absent if the driver or the GPU does not have it.
template <class Value, class Function>
std::optional<Value> ask(Function* function, Device device) {
    Value value{};
    if (!function || function(device, &value) != nvml::kSuccess) return std::nullopt;
    return value;
}

// NVLink's major version from the library's number for it, which counts minor versions too.
int major_of(unsigned number) {
    constexpr std::array<int, 8> kMajors = {0, 1, 2, 2, 3, 3, 4, 5};
    return number < kMajors.size() ? kMajors[number] : kMajors.back();
}

bool exists(const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
}

bool has_entries(const std::string& folder) {
    std::error_code error;
    return std::filesystem::directory_iterator(folder, error) !=
               std::filesystem::directory_iterator() &&
           !error;
}

std::string what_to_do(int code) {
    if (code == nvml::kVersionMismatch)
        return "; the driver was upgraded under the running system: restart the machine, or reload "
               "the nvidia kernel modules";
    if (code == nvml::kDriverNotLoaded)
        return "; the kernel module is not loaded: see `nvidia-smi` and `dmesg`";
    return "; see `nvidia-smi` and `dmesg`";
}

}  // namespace

Nvml::~Nvml() {
    if (api_.shutdown) api_.shutdown();
}

std::string Nvml::text_of(int code) const {
    const char* said = api_.error_string(code);
    return said ? said : "error " + std::to_string(code);
}

std::string Nvml::driver_version() const {
    return api_.driver_version ? text(api_.driver_version) : "";
}

int Nvml::cuda_version() const {
    int version = 0;
    return api_.cuda_version && api_.cuda_version(&version) == nvml::kSuccess ? version : 0;
}

std::vector<GpuInfo> Nvml::gpus() const {
    unsigned count = 0;
    std::vector<GpuInfo> found;
    if (api_.count(&count) != nvml::kSuccess) return found;
    for (unsigned i = 0; i < count; ++i) found.push_back(info(static_cast<int>(i)));
    return found;
}

GpuInfo Nvml::info(int index) const {
    GpuInfo found;
    found.index = index;
    Device device = nullptr;
    const int code = api_.handle(static_cast<unsigned>(index), &device);
    if (code != nvml::kSuccess) {
        found.problem = text_of(code);
        return found;
    }
    found.name = text([&](char* to, unsigned size) { return api_.name(device, to, size); });
    found.uuid = text([&](char* to, unsigned size) { return api_.uuid(device, to, size); });
    if (const auto pci = ask<nvml::PciInfo>(api_.pci_info, device)) found.pci = pci->bus_id;
    if (const auto memory = ask<nvml::Memory>(api_.memory, device))
        found.memory_bytes = memory->total;
    const int mode = ask<int>(api_.compute_mode, device).value_or(0);
    found.prohibited = mode == kModeProhibited;
    found.exclusive = mode == kModeExclusive;
    add_slices(device, found);
    add_links(device, found);
    return found;
}

void Nvml::add_slices(Device device, GpuInfo& info) const {
    unsigned now = 0;
    unsigned pending = 0;
    if (!api_.mig_mode || api_.mig_mode(device, &now, &pending) != nvml::kSuccess || now == 0)
        return;
    info.mig = true;
    const unsigned most = api_.mig_handle ? ask<unsigned>(api_.mig_count, device).value_or(0) : 0;
    for (unsigned i = 0; i < most; ++i) {
        Device slice = nullptr;
        if (api_.mig_handle(device, i, &slice) != nvml::kSuccess) continue;
        const auto memory = ask<nvml::Memory>(api_.memory, slice);
        info.slices.push_back(
            {text([&](char* to, unsigned size) { return api_.uuid(slice, to, size); }),
             memory ? memory->total : 0});
    }
}

void Nvml::add_links(Device device, GpuInfo& info) const {
    for (unsigned link = 0; api_.nvlink_state && link < kMaxNvlinks; ++link) {
        int up = 0;
        if (api_.nvlink_state(device, link, &up) != nvml::kSuccess || up == 0) continue;
        unsigned version = 0;
        if (info.nvlinks++ == 0 && api_.nvlink_version &&
            api_.nvlink_version(device, link, &version) == nvml::kSuccess)
            info.nvlink_version = major_of(version);
    }
    info.pcie_generation =
        static_cast<int>(ask<unsigned>(api_.pcie_generation, device).value_or(0));
    info.pcie_width = static_cast<int>(ask<unsigned>(api_.pcie_width, device).value_or(0));
}

GpuReading Nvml::read_memory(int index) const {
    GpuReading reading;
    Device device = nullptr;
    int code = api_.handle(static_cast<unsigned>(index), &device);
    nvml::Memory memory{};
    if (code == nvml::kSuccess) code = api_.memory(device, &memory);
    // In some states of MIG, memory is not told; that is no problem of the GPU.
    if (code != nvml::kSuccess && code != nvml::kNotSupported) {
        reading.problem = text_of(code);
        return reading;
    }
    if (code == nvml::kSuccess) {
        reading.used_bytes = memory.used;
        reading.total_bytes = memory.total;
    }
    reading.processes = processes(device);
    return reading;
}

GpuReading Nvml::read(int index) const {
    GpuReading reading = read_memory(index);
    Device device = nullptr;
    if (!reading.problem.empty() ||
        api_.handle(static_cast<unsigned>(index), &device) != nvml::kSuccess)
        return reading;
    if (const auto busy = ask<nvml::Utilization>(api_.utilization, device))
        reading.busy_percent = busy->gpu;
    if (const auto milliwatts = ask<unsigned>(api_.power, device))
        reading.watts = *milliwatts / 1000.0;
    if (const auto milliwatts = ask<unsigned>(api_.power_limit, device))
        reading.watts_limit = *milliwatts / 1000.0;
    unsigned celsius = 0;
    if (api_.temperature && api_.temperature(device, kTemperatureOfGpu, &celsius) == nvml::kSuccess)
        reading.celsius = celsius;
    add_health(device, reading);
    return reading;
}

void Nvml::add_health(Device device, GpuReading& reading) const {
    unsigned long long errors = 0;
    if (api_.ecc_errors &&
        api_.ecc_errors(device, kUncorrected, kSinceDriverLoaded, &errors) == nvml::kSuccess)
        reading.ecc_errors = errors;
    unsigned corrected = 0;
    unsigned uncorrected = 0;
    unsigned pending = 0;
    unsigned failed = 0;
    if (!api_.remapped_rows ||
        api_.remapped_rows(device, &corrected, &uncorrected, &pending, &failed) != nvml::kSuccess)
        return;
    reading.rows_pending = pending != 0;
    reading.rows_failed = failed != 0;
}

std::vector<GpuProcess> Nvml::processes(Device device) const {
    std::vector<nvml::ProcessInfo> list(16);
    unsigned count = static_cast<unsigned>(list.size());
    int code = api_.processes ? api_.processes(device, &count, list.data()) : nvml::kNotSupported;
    // More may start between two questions, hence the room beyond what it says.
    while (code == nvml::kInsufficientSize && list.size() < kMaxProcesses) {
        list.resize(std::max<std::size_t>(count, list.size()) * 2);
        count = static_cast<unsigned>(list.size());
        code = api_.processes(device, &count, list.data());
    }
    std::vector<GpuProcess> found;
    if (code != nvml::kSuccess) return found;
    for (unsigned i = 0; i < count && i < list.size(); ++i) {
        GpuProcess process{static_cast<pid_t>(list[i].pid), std::nullopt};
        if (list[i].used != ~0ULL) process.bytes = list[i].used;
        found.push_back(process);
    }
    return found;
}

Ancestor Nvml::ancestor(int first, int second) const {
    Device a = nullptr;
    Device b = nullptr;
    int level = -1;
    if (!api_.common_ancestor || api_.handle(static_cast<unsigned>(first), &a) != nvml::kSuccess ||
        api_.handle(static_cast<unsigned>(second), &b) != nvml::kSuccess ||
        api_.common_ancestor(a, b, &level) != nvml::kSuccess)
        return Ancestor::unknown;
    switch (level) {
        case 0:
            return Ancestor::same_board;
        case 10:
            return Ancestor::one_switch;
        case 20:
            return Ancestor::switches;
        case 30:
            return Ancestor::host_bridge;
        case 40:
            return Ancestor::numa_node;
        case 50:
            return Ancestor::system;
        default:
            return Ancestor::unknown;
    }
}

std::unique_ptr<GpuEvents> Nvml::events() const {
    unsigned count = 0;
    std::vector<int> all;
    if (api_.count(&count) == nvml::kSuccess)
        for (unsigned i = 0; i < count; ++i) all.push_back(static_cast<int>(i));
    return std::make_unique<GpuEvents>(api_, all);
}

FoundDriver find_driver(const std::string& library, const std::string& root) {
    using State = FoundDriver::State;
    const bool device_file = exists(root + "/dev/nvidiactl");
    const bool module = has_entries(root + "/proc/driver/nvidia/gpus");
    const auto api = nvml::load_api(library);
    if (!api) {
        if (!device_file) return {State::absent, "", nullptr};
        return {State::broken,
                "this machine has an NVIDIA GPU (/dev/nvidiactl), but the driver's library cannot "
                "be loaded (" +
                    api.error().message +
                    "); install the driver, or start the container with NVIDIA's runtime",
                nullptr};
    }
    const int code = api.value().init();
    if (code == nvml::kSuccess) return {State::ready, "", std::make_unique<Nvml>(api.value())};
    if (code == nvml::kDriverNotLoaded && !device_file && !module)
        return {State::absent, "", nullptr};
    const char* said = api.value().error_string(code);
    return {State::broken,
            "the NVIDIA driver does not work: " +
                (said ? std::string(said) : "error " + std::to_string(code)) + what_to_do(code),
            nullptr};
}

}  // namespace sgpu
