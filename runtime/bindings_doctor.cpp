// bindings_doctor.cpp: what Python sees of doctor.h.
#include <pybind11/stl.h>

#include <algorithm>

#include "runtime/bindings.h"
#include "runtime/doctor.h"

namespace py = pybind11;
using namespace py::literals;

namespace sgpu {
namespace {

PartFacts part_of(const py::tuple& part) {
    return {part[0].cast<std::string>(), part[1].cast<std::string>(), part[2].cast<std::string>()};
}

// The GPUs as they are now; processes in `ours` are this notebook's.
DriverFacts read_driver(const Nvml& nvml, const std::vector<int>& visible,
                        const std::set<pid_t>& ours) {
    DriverFacts facts;
    facts.state = FoundDriver::State::ready;
    facts.version = nvml.driver_version();
    facts.cuda_version = nvml.cuda_version();
    const auto gpus = nvml.gpus();
    facts.hidden = static_cast<int>(gpus.size() - visible.size());
    for (const int index : visible) {
        GpuFacts gpu{gpus.at(static_cast<std::size_t>(index)), nvml.read(index), {}};
        for (Occupant& one : occupants(gpu.reading))
            if (ours.count(one.pid) == 0) gpu.others.push_back(std::move(one));
        facts.gpus.push_back(std::move(gpu));
    }
    bool known = false;
    for (const int a : visible) {
        for (const int b : visible) {
            if (a >= b) continue;
            const Ancestor one = nvml.ancestor(a, b);
            facts.farthest = known ? std::max(facts.farthest, one) : one;
            known = true;
        }
    }
    return facts;
}

DriverFacts driver_facts(const std::string& problem, const Nvml* nvml,
                         const std::vector<int>& visible, const std::set<pid_t>& ours) {
    if (nvml) return read_driver(*nvml, visible, ours);
    DriverFacts facts;
    facts.problem = problem;
    if (!problem.empty()) facts.state = FoundDriver::State::broken;
    return facts;
}

SoftwareFacts software_facts(const py::dict& found) {
    return {found["python"].cast<std::string>(),
            found["torch"].cast<std::string>(),
            found["torch_cuda"].cast<std::string>(),
            part_of(found["kernelspec"]),
            part_of(found["jupyter"]),
            part_of(found["mlflow"])};
}

AllReduceFacts all_reduce_facts(const py::object& done) {
    if (done.is_none()) return {};
    const auto text = [&](const char* name) { return done[name].cast<std::string>(); };
    return {true,
            text("error"),
            done["ranks"].cast<int>(),
            text("backend"),
            text("nccl"),
            done["bytes"].cast<std::uint64_t>(),
            done["seconds"].cast<double>()};
}

py::list diagnose_here(const py::dict& software, const py::object& all_reduce, int ranks,
                       const std::string& problem, const Nvml* nvml,
                       const std::vector<int>& visible, const std::set<pid_t>& ours) {
    DoctorFacts facts;
    facts.software = software_facts(software);
    facts.all_reduce = all_reduce_facts(all_reduce);
    facts.ranks = ranks;
    {
        const py::gil_scoped_release release;
        facts.system = read_system_facts();
        facts.driver = driver_facts(problem, nvml, visible, ours);
    }
    constexpr const char* kLevels[] = {"ok", "warning", "error"};
    py::list list;
    for (const Check& check : diagnose(facts))
        list.append(py::make_tuple(kLevels[static_cast<std::size_t>(check.level)], check.name,
                                   check.text, check.advice));
    return list;
}

}  // namespace

void bind_doctor(py::module_& m) {
    m.def("diagnose", &diagnose_here, "software"_a, "all_reduce"_a, "ranks"_a, "problem"_a,
          "driver"_a, "visible"_a, "ours"_a,
          "Reads what the system and the driver tell now; (level, name, text, advice) of each "
          "check.");
}

}  // namespace sgpu
