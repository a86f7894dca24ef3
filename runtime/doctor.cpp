#include "runtime/doctor.h"

#include <array>
#include <cstdio>

namespace sgpu {
namespace {

using Level = Check::Level;

// What an all-reduce reaches of the links' speed when all is well is 0.7 to 0.9; below these shares
// something is in its way.
constexpr double kShareOfNvlink = 0.4;
constexpr double kShareOfPcie = 0.2;

std::string number(double value, const char* form) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), form, value);
    return text.data();
}

void check_part(const char* name, const PartFacts& part, Level bad, std::vector<Check>& checks) {
    if (part.problem.empty())
        checks.push_back({Level::ok, name, part.text, ""});
    else
        checks.push_back({bad, name, part.problem, part.advice});
}

}  // namespace

double link_speed(const GpuInfo& gpu) {
    // GB/s of one NVLink, and of one PCIe lane, by version; in one direction.
    constexpr std::array<double, 6> kNvlink = {0, 20, 25, 25, 25, 50};
    constexpr std::array<double, 7> kLane = {0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563};
    const auto of = [](const auto& table, int version) {
        if (version <= 0) return 0.0;
        return table[std::min(static_cast<std::size_t>(version), table.size() - 1)];
    };
    if (gpu.nvlinks > 0) return gpu.nvlinks * of(kNvlink, gpu.nvlink_version);
    return gpu.pcie_width * of(kLane, gpu.pcie_generation);
}

void check_all_reduce(const DoctorFacts& facts, std::vector<Check>& checks) {
    const AllReduceFacts& done = facts.all_reduce;
    if (!done.tried) return;
    const std::string name = "all-reduce";
    if (!done.error.empty()) {
        checks.push_back({Level::error, name, done.error,
                          done.backend == "nccl"
                              ? "run it again with NCCL_DEBUG=INFO in the environment"
                              : "run `%distributed logs`"});
        return;
    }
    const double speed = static_cast<double>(done.bytes) / done.seconds / 1e9;
    // What crosses each link: the measure that does not depend on the number of ranks.
    const double bus = speed * 2 * (done.ranks - 1) / std::max(done.ranks, 1);
    const std::string what = done.backend + (done.nccl.empty() ? "" : " " + done.nccl) + ", " +
                             std::to_string(done.ranks) + (done.ranks == 1 ? " rank" : " ranks") +
                             ", " + number(static_cast<double>(done.bytes) / 1e6, "%.0f MB in ") +
                             number(done.seconds * 1e3, "%.2f ms");
    if (done.ranks < 2) {
        checks.push_back({Level::ok, name, what + "; there is nobody to exchange with", ""});
        return;
    }
    const std::string measured = what + ": " + number(bus, "%.1f GB/s over each link");
    const double links = facts.driver.gpus.empty() ? 0 : link_speed(facts.driver.gpus[0].info);
    if (done.backend != "nccl" || links == 0) {
        checks.push_back({Level::ok, name, measured, ""});
        return;
    }
    const bool nvlink = facts.driver.gpus[0].info.nvlinks > 0;
    const std::string compared = measured + " of " + number(links, "%.0f");
    if (bus >= links * (nvlink ? kShareOfNvlink : kShareOfPcie))
        checks.push_back({Level::ok, name, compared, ""});
    else
        checks.push_back({Level::warning, name, compared,
                          "the links are not used or shared with others: see `nvidia-smi topo -m` "
                          "and NCCL_DEBUG=INFO; in a virtual machine, whether peer access is on"});
}

std::vector<Check> diagnose(const DoctorFacts& facts) {
    std::vector<Check> checks;
    const SoftwareFacts& software = facts.software;
    checks.push_back({Level::ok, "Python", software.python, ""});
    check_gpus(facts, checks);
    check_all_reduce(facts, checks);
    check_system(facts, checks);
    check_part("kernelspec", software.kernelspec, Level::error, checks);
    check_part("Jupyter", software.jupyter, Level::warning, checks);
    check_part("MLflow", software.mlflow, Level::error, checks);
    return checks;
}

}  // namespace sgpu
