// nvml_api.h: the functions of NVIDIA's management library that we call, found at run time.
//
// Declared here by their documented binary interface, so that nothing of NVIDIA's is needed to
// build or to run where there is no GPU.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/result.h"

namespace sgpu::nvml {

using Device = void*;

// The results that we act on; the library has more, and error_text knows them all.
enum Code : int {
    kSuccess = 0,
    kNotSupported = 3,
    kNotFound = 6,
    kInsufficientSize = 7,
    kDriverNotLoaded = 9,
    kGpuIsLost = 15,
    kResetRequired = 16,
    kVersionMismatch = 18,
};

struct Memory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
};
struct Utilization {
    unsigned gpu;
    unsigned memory;
};
struct ProcessInfo {  // of the _v2 and _v3 functions
    unsigned pid;
    unsigned long long used;  // all bits set: not known
    unsigned gpu_instance;
    unsigned compute_instance;
};
struct PciInfo {  // of the _v3 function
    char bus_id_legacy[16];
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned pci_device_id;
    unsigned pci_subsystem_id;
    char bus_id[32];
};

using EventSet = void*;
struct EventData {  // of the _v2 function
    Device device;
    unsigned long long type;  // one bit
    unsigned long long data;  // of a critical error: its Xid
    unsigned gpu_instance;
    unsigned compute_instance;
};

// A null pointer is a function that this driver does not have.
struct Api {
    int (*init)() = nullptr;
    int (*shutdown)() = nullptr;
    const char* (*error_string)(int) = nullptr;
    int (*driver_version)(char*, unsigned) = nullptr;
    int (*cuda_version)(int*) = nullptr;  // 13000 is 13.0
    int (*count)(unsigned*) = nullptr;
    int (*handle)(unsigned, Device*) = nullptr;
    int (*name)(Device, char*, unsigned) = nullptr;
    int (*uuid)(Device, char*, unsigned) = nullptr;
    int (*pci_info)(Device, PciInfo*) = nullptr;
    int (*memory)(Device, Memory*) = nullptr;
    int (*processes)(Device, unsigned*, ProcessInfo*) = nullptr;
    int (*utilization)(Device, Utilization*) = nullptr;
    int (*temperature)(Device, int, unsigned*) = nullptr;
    int (*power)(Device, unsigned*) = nullptr;        // mW
    int (*power_limit)(Device, unsigned*) = nullptr;  // mW
    int (*mig_mode)(Device, unsigned*, unsigned*) = nullptr;
    int (*mig_count)(Device, unsigned*) = nullptr;
    int (*mig_handle)(Device, unsigned, Device*) = nullptr;
    int (*compute_mode)(Device, int*) = nullptr;
    int (*ecc_errors)(Device, int, int, unsigned long long*) = nullptr;
    int (*remapped_rows)(Device, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
    int (*nvlink_state)(Device, unsigned, int*) = nullptr;
    int (*nvlink_version)(Device, unsigned, unsigned*) = nullptr;
    int (*common_ancestor)(Device, Device, int*) = nullptr;
    int (*pcie_generation)(Device, unsigned*) = nullptr;
    int (*pcie_width)(Device, unsigned*) = nullptr;
    int (*event_set_create)(EventSet*) = nullptr;
    int (*event_set_free)(EventSet) = nullptr;
    int (*register_events)(Device, unsigned long long, EventSet) = nullptr;
    int (*event_set_wait)(EventSet, EventData*, unsigned) = nullptr;  // ms
};

// Loads the library for the rest of the process: it is never unloaded, as it may have threads.
// Errors: Errc::os_failure, with what the loader says; also for a library without the functions
// that every driver of the last ten years has.
Result<Api> load_api(const std::string& library);

}  // namespace sgpu::nvml
