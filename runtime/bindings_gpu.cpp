// bindings_gpu.cpp: what Python sees of runtime/gpu/.
#include <pybind11/stl.h>

#include "runtime/bindings.h"
#include "runtime/gpu/gpu_type.h"
#include "runtime/gpu/lock.h"
#include "runtime/gpu/nvml.h"
#include "runtime/gpu/occupants.h"
#include "runtime/gpu/visible.h"
#include "runtime/gpu/warm.h"

namespace py = pybind11;
using namespace py::literals;

namespace sgpu {
namespace {

const char* name_of(FoundDriver::State state) {
    constexpr const char* kNames[] = {"ready", "absent", "broken"};
    return kNames[static_cast<std::size_t>(state)];
}

const char* name_of(Ancestor ancestor) {
    constexpr const char* kNames[] = {"same board",  "one PCIe switch", "PCIe switches",
                                      "host bridge", "one NUMA node",   "across NUMA nodes",
                                      "unknown"};
    return kNames[static_cast<std::size_t>(ancestor)];
}

py::tuple find(const std::string& library) {
    FoundDriver found = [&] {
        const py::gil_scoped_release release;
        return find_driver(library);
    }();
    py::object driver = py::none();
    if (found.nvml) driver = py::cast(std::move(found.nvml));
    return py::make_tuple(name_of(found.state), found.problem, driver);
}

void bind_values(py::module_& m) {
    py::class_<MigSlice>(m, "MigSlice")
        .def_readonly("uuid", &MigSlice::uuid)
        .def_readonly("memory_bytes", &MigSlice::memory_bytes);
    py::class_<GpuInfo>(m, "GpuInfo")
        .def_readonly("index", &GpuInfo::index)
        .def_readonly("problem", &GpuInfo::problem)
        .def_readonly("name", &GpuInfo::name)
        .def_readonly("uuid", &GpuInfo::uuid)
        .def_readonly("pci", &GpuInfo::pci)
        .def_readonly("memory_bytes", &GpuInfo::memory_bytes)
        .def_readonly("mig", &GpuInfo::mig)
        .def_readonly("slices", &GpuInfo::slices)
        .def_readonly("exclusive", &GpuInfo::exclusive)
        .def_readonly("prohibited", &GpuInfo::prohibited)
        .def_readonly("nvlinks", &GpuInfo::nvlinks)
        .def_readonly("nvlink_version", &GpuInfo::nvlink_version)
        .def_readonly("pcie_generation", &GpuInfo::pcie_generation)
        .def_readonly("pcie_width", &GpuInfo::pcie_width);
    py::class_<GpuProcess>(m, "GpuProcess")
        .def_readonly("pid", &GpuProcess::pid)
        .def_readonly("bytes", &GpuProcess::bytes);
    py::class_<GpuReading>(m, "GpuReading")
        .def_readonly("problem", &GpuReading::problem)
        .def_readonly("used_bytes", &GpuReading::used_bytes)
        .def_readonly("total_bytes", &GpuReading::total_bytes)
        .def_readonly("busy_percent", &GpuReading::busy_percent)
        .def_readonly("celsius", &GpuReading::celsius)
        .def_readonly("watts", &GpuReading::watts)
        .def_readonly("watts_limit", &GpuReading::watts_limit)
        .def_readonly("ecc_errors", &GpuReading::ecc_errors)
        .def_readonly("rows_pending", &GpuReading::rows_pending)
        .def_readonly("rows_failed", &GpuReading::rows_failed)
        .def_readonly("processes", &GpuReading::processes);
    py::class_<Occupant>(m, "Occupant")
        .def_readonly("pid", &Occupant::pid)
        .def_readonly("bytes", &Occupant::bytes)
        .def_readonly("user", &Occupant::user)
        .def_readonly("name", &Occupant::name);
    py::class_<HeldGpu>(m, "HeldGpu")
        .def_readonly("uuid", &HeldGpu::uuid)
        .def_readonly("pid", &HeldGpu::pid)
        .def_readonly("notebook", &HeldGpu::notebook);
    py::class_<VisibleGpu>(m, "VisibleGpu")
        .def_readonly("gpu", &VisibleGpu::gpu)
        .def_readonly("uuid", &VisibleGpu::uuid)
        .def_readonly("slice", &VisibleGpu::slice);
}

}  // namespace

void bind_gpu(py::module_& m) {
    bind_values(m);
    const auto unlocked = py::call_guard<py::gil_scoped_release>();
    py::class_<Nvml>(m, "GpuDriver")
        .def_property_readonly("version", &Nvml::driver_version)
        .def_property_readonly("cuda_version", &Nvml::cuda_version)
        .def("gpus", &Nvml::gpus, unlocked)
        .def("read", &Nvml::read, "index"_a, unlocked)
        .def("read_memory", &Nvml::read_memory, "index"_a, unlocked)
        .def("ancestor", [](const Nvml& n, int a, int b) { return name_of(n.ancestor(a, b)); })
        .def("events", &Nvml::events, py::keep_alive<0, 1>(),
             "Critical errors of all GPUs, from now on.");
    py::class_<GpuEvents>(m, "GpuEvents").def("take", [](GpuEvents& events) {
        std::vector<std::pair<int, int>> found;
        for (const GpuEvent& one : events.take()) found.emplace_back(one.gpu, one.xid);
        return found;
    });
    // Calls keep the GIL, which makes them one at a time; none of them waits.
    py::class_<GpuLocks>(m, "GpuLocks")
        .def(py::init<std::string>(), "folder"_a = kLockFolder)
        .def(
            "try_take",
            [](GpuLocks& locks, const std::vector<std::string>& uuids, const std::string& name) {
                auto held = locks.try_take(uuids, name);
                if (!held) throw_os_error(held.error().os_errno, held.error().message.c_str());
                return std::move(held.value());
            },
            "uuids"_a, "notebook"_a, "All or none, without waiting; those that others have.")
        .def("give_back", &GpuLocks::give_back, "uuids"_a)
        .def("forget", &GpuLocks::forget, "In a forked child: the parent keeps what it has.");
    m.def("occupants", &occupants, "reading"_a);
    m.def("cuda_in_use", &cuda_in_use, "library"_a = kCudaLibrary);
    m.def("find_gpu_driver", &find, "library"_a = kNvmlLibrary);
    m.def("visible_gpus", &visible_gpus, "variable"_a, "gpus"_a);
    m.def("gpu_type_of", &gpu_type_of, "name"_a);
    m.def("known_gpu_types", [] {
        const auto known = known_gpu_types();
        return std::vector<std::string>(known.begin(), known.end());
    });
}

}  // namespace sgpu
