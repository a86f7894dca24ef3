#include "runtime/gpu/nvml_api.h"

#include <dlfcn.h>

namespace sgpu::nvml {
namespace {

template <class Function>
void find(void* library, const char* name, Function*& function) {
    if (!function) function = reinterpret_cast<Function*>(::dlsym(library, name));
}

void find_system(void* library, Api& api) {
    find(library, "nvmlInit_v2", api.init);
    find(library, "nvmlShutdown", api.shutdown);
    find(library, "nvmlErrorString", api.error_string);
    find(library, "nvmlSystemGetDriverVersion", api.driver_version);
    find(library, "nvmlSystemGetCudaDriverVersion_v2", api.cuda_version);
    find(library, "nvmlDeviceGetCount_v2", api.count);
    find(library, "nvmlDeviceGetHandleByIndex_v2", api.handle);
}

void find_lasting(void* library, Api& api) {
    find(library, "nvmlDeviceGetName", api.name);
    find(library, "nvmlDeviceGetUUID", api.uuid);
    find(library, "nvmlDeviceGetPciInfo_v3", api.pci_info);
    find(library, "nvmlDeviceGetMigMode", api.mig_mode);
    find(library, "nvmlDeviceGetMaxMigDeviceCount", api.mig_count);
    find(library, "nvmlDeviceGetMigDeviceHandleByIndex", api.mig_handle);
    find(library, "nvmlDeviceGetComputeMode", api.compute_mode);
    find(library, "nvmlDeviceGetNvLinkState", api.nvlink_state);
    find(library, "nvmlDeviceGetNvLinkVersion", api.nvlink_version);
    find(library, "nvmlDeviceGetTopologyCommonAncestor", api.common_ancestor);
    find(library, "nvmlDeviceGetMaxPcieLinkGeneration", api.pcie_generation);
    find(library, "nvmlDeviceGetMaxPcieLinkWidth", api.pcie_width);
    find(library, "nvmlDeviceGetEnforcedPowerLimit", api.power_limit);
}

void find_passing(void* library, Api& api) {
    find(library, "nvmlDeviceGetMemoryInfo", api.memory);
    // The same layout; older drivers have only the second.
    find(library, "nvmlDeviceGetComputeRunningProcesses_v3", api.processes);
    find(library, "nvmlDeviceGetComputeRunningProcesses_v2", api.processes);
    find(library, "nvmlDeviceGetUtilizationRates", api.utilization);
    find(library, "nvmlDeviceGetTemperature", api.temperature);
    find(library, "nvmlDeviceGetPowerUsage", api.power);
    find(library, "nvmlDeviceGetTotalEccErrors", api.ecc_errors);
    find(library, "nvmlDeviceGetRemappedRows", api.remapped_rows);
}

void find_events(void* library, Api& api) {
    find(library, "nvmlEventSetCreate", api.event_set_create);
    find(library, "nvmlEventSetFree", api.event_set_free);
    find(library, "nvmlDeviceRegisterEvents", api.register_events);
    find(library, "nvmlEventSetWait_v2", api.event_set_wait);
}

}  // namespace

Result<Api> load_api(const std::string& library) {
    void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char* why = ::dlerror();
        return Error{Errc::os_failure, why ? why : library + ": cannot be loaded", 0};
    }
    Api api;
    find_system(handle, api);
    find_lasting(handle, api);
    find_passing(handle, api);
    find_events(handle, api);
    if (!api.init || !api.error_string || !api.count || !api.handle || !api.name || !api.uuid ||
        !api.memory)
        return Error{Errc::os_failure, library + ": not NVIDIA's management library, or too old",
                     0};
    return api;
}

}  // namespace sgpu::nvml
