// doctor_gpus.cpp: what the doctor says of the driver, torch's CUDA and each GPU. Pure.
#include <algorithm>
#include <charconv>
#include <set>

#include "runtime/doctor.h"
#include "runtime/gpu/gpu_type.h"

namespace sgpu {
namespace {

using Level = Check::Level;

constexpr unsigned kHot = 88;  // degrees at which GPUs begin to slow down

std::string gb(std::uint64_t bytes) {
    return std::to_string((bytes + 500'000'000) / 1'000'000'000) + " GB";
}

std::string version_text(int cuda) {
    return std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10);
}

int major_of(const std::string& version) {
    int number = 0;
    std::from_chars(version.data(), version.data() + version.size(), number);
    return number;
}

void check_driver(const DoctorFacts& facts, std::vector<Check>& checks) {
    const DriverFacts& driver = facts.driver;
    const std::string ranks = std::to_string(facts.ranks);
    if (driver.state == FoundDriver::State::broken) {
        checks.push_back({Level::error, "driver", driver.problem,
                          "mend the driver; SERVERLESS_GPU_ACCELERATOR=cpu chooses CPU ranks"});
    } else if (driver.state == FoundDriver::State::absent) {
        checks.push_back(
            {Level::ok, "GPUs", "no NVIDIA GPU here: " + ranks + " CPU ranks over gloo", ""});
    } else {
        checks.push_back({Level::ok, "driver",
                          driver.version + ", runs CUDA up to " + version_text(driver.cuda_version),
                          ""});
        if (driver.gpus.empty() || driver.hidden > 0)
            checks.push_back({driver.gpus.empty() ? Level::warning : Level::ok, "GPUs",
                              std::to_string(driver.gpus.size()) + " visible, " +
                                  std::to_string(driver.hidden) + " hidden by CUDA_VISIBLE_DEVICES",
                              driver.gpus.empty() ? "unset CUDA_VISIBLE_DEVICES to use them" : ""});
    }
}

void check_torch(const DoctorFacts& facts, std::vector<Check>& checks) {
    const auto& [python, torch, cuda, kernelspec, jupyter, mlflow] = facts.software;
    const DriverFacts& driver = facts.driver;
    if (torch.empty()) {
        checks.push_back({Level::error, "torch", "it cannot be imported", "pip install torch"});
    } else if (driver.gpus.empty()) {
        checks.push_back({Level::ok, "torch", torch, ""});
    } else if (cuda.empty()) {
        checks.push_back({Level::error, "torch", torch + " is a build without CUDA",
                          "install a build for CUDA " + version_text(driver.cuda_version) +
                              " or older, see https://pytorch.org/get-started/locally"});
    } else if (driver.cuda_version > 0 && major_of(cuda) > driver.cuda_version / 1000) {
        checks.push_back({Level::error, "torch",
                          torch + " is built for CUDA " + cuda + ", the driver runs CUDA up to " +
                              version_text(driver.cuda_version),
                          "upgrade the driver, or install a torch built for CUDA " +
                              std::to_string(driver.cuda_version / 1000)});
    } else {
        checks.push_back({Level::ok, "torch", torch + ", CUDA " + cuda, ""});
    }
}

// What is wrong with a GPU for good; empty if nothing.
std::optional<Check> defect_of(const GpuFacts& gpu, const std::string& name) {
    const std::string smi = "nvidia-smi -i " + std::to_string(gpu.info.index);
    const std::string& problem = gpu.info.problem.empty() ? gpu.reading.problem : gpu.info.problem;
    if (!problem.empty())
        return Check{
            Level::error, name, "it does not answer: " + problem,
            "see `dmesg | grep -i xid`; reset it (`nvidia-smi -r`) or restart the machine"};
    if (gpu.info.prohibited)
        return Check{Level::error, name, "its compute mode lets no process in",
                     "`sudo " + smi + " -c 0`"};
    if (gpu.reading.rows_failed)
        return Check{Level::error, name, "bad memory that can no longer be replaced",
                     "have the GPU exchanged; leave it out with CUDA_VISIBLE_DEVICES until then"};
    if (gpu.reading.rows_pending)
        return Check{Level::warning, name, "bad memory that the next reset replaces",
                     "reset it when it is idle: `sudo nvidia-smi -r`"};
    if (gpu.reading.ecc_errors.value_or(0) > 0)
        return Check{
            Level::warning, name,
            std::to_string(*gpu.reading.ecc_errors) + " memory errors that were not corrected",
            "see `dmesg | grep -i xid`, and reset it when it is idle"};
    return std::nullopt;
}

Check state_of(const GpuFacts& gpu, const std::string& name) {
    const GpuReading& now = gpu.reading;
    std::string text = gpu_type_of(gpu.info.name);
    if (now.used_bytes && now.total_bytes)
        text +=
            ", " + gb(*now.total_bytes - *now.used_bytes) + " of " + gb(*now.total_bytes) + " free";
    if (now.celsius) text += ", " + std::to_string(*now.celsius) + " °C";
    if (gpu.info.mig) text += ", MIG with " + std::to_string(gpu.info.slices.size()) + " slices";
    if (!gpu.others.empty()) {
        const Occupant& first = gpu.others.front();
        text += "; pid " + std::to_string(first.pid) +
                (first.user.empty() ? "" : " (" + first.user + ", " + first.name + ")") +
                (gpu.others.size() > 1 ? " and others are" : " is") + " on it";
        return {Level::warning, name, text, "a call says so too, and may run out of memory"};
    }
    if (gpu.info.exclusive)
        return {Level::warning, name, text + "; it takes one process at a time",
                "`sudo nvidia-smi -c 0`, or a session and a function call cannot share it"};
    if (now.celsius.value_or(0) >= kHot)
        return {Level::warning, name, text, "it is about to slow down: look after its cooling"};
    return {Level::ok, name, text, ""};
}

void check_links(const DoctorFacts& facts, std::vector<Check>& checks) {
    constexpr const char* kNear[] = {"on one board",
                                     "behind one PCIe switch",
                                     "behind PCIe switches",
                                     "behind one host bridge",
                                     "on one NUMA node",
                                     "across NUMA nodes",
                                     "connected in a way that the driver does not tell"};
    const auto& gpus = facts.driver.gpus;
    if (gpus.size() < 2) return;
    std::set<std::string> types;
    int most = 0;
    for (const GpuFacts& gpu : gpus) {
        types.insert(gpu_type_of(gpu.info.name));
        most = std::max(most, gpu.info.nvlinks);
    }
    if (types.size() > 1)
        checks.push_back({Level::warning, "GPUs", "of several types",
                          "the slowest sets the pace; choose some with CUDA_VISIBLE_DEVICES"});
    for (const GpuFacts& gpu : gpus)
        if (types.size() == 1 && gpu.info.problem.empty() && gpu.info.nvlinks < most)
            checks.push_back({Level::warning, "GPU " + std::to_string(gpu.info.index),
                              std::to_string(gpu.info.nvlinks) + " of " + std::to_string(most) +
                                  " NVLinks are up",
                              "see `nvidia-smi nvlink -s` and the fabric manager's log"});
    const std::string near = kNear[static_cast<std::size_t>(facts.driver.farthest)];
    const auto speed = std::to_string(static_cast<int>(link_speed(gpus[0].info))) + " GB/s each";
    checks.push_back({Level::ok, "topology",
                      most > 0 ? std::to_string(most) + " NVLinks a GPU, " + speed + ", " + near
                               : "PCIe, " + speed + ", " + near,
                      ""});
}

}  // namespace

void check_gpus(const DoctorFacts& facts, std::vector<Check>& checks) {
    check_driver(facts, checks);
    check_torch(facts, checks);
    for (const GpuFacts& gpu : facts.driver.gpus) {
        const std::string name = "GPU " + std::to_string(gpu.info.index);
        const auto defect = defect_of(gpu, name);
        checks.push_back(defect ? *defect : state_of(gpu, name));
    }
    check_links(facts, checks);
}

}  // namespace sgpu
