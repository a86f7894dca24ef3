// fake_nvml.cpp: a libnvidia-ml.so.1 for machines without a GPU.
//
// SGPU_FAKE_NVML names the machine: 8xH100, 2xH100, 1xA10, mixed, mig, lost, broken, unloaded,
// none. SGPU_FAKE_NVML_USE says who is on it: "GPU:PID:MIB,…"; SGPU_FAKE_NVML_XIDS what goes wrong
// there, once: "GPU:XID,…". All are read anew by each call.
// NVIDIA's names and layouts are repeated here on purpose: what the product declares is checked
// against them.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalid = 2;
constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr int kInsufficientSize = 7;
constexpr int kNotLoaded = 9;
constexpr int kTimeout = 10;
constexpr int kLost = 15;
constexpr int kMismatch = 18;
constexpr unsigned long long kMiB = 1ULL << 20;
constexpr unsigned long long kCritical = 8;  // nvmlEventTypeXidCriticalError

struct Gpu {
    const char* name;
    unsigned long long mib;
    int nvlinks;
};
struct Use {
    int gpu;
    unsigned pid;
    unsigned long long mib;
};

constexpr Gpu kH100 = {"NVIDIA H100 80GB HBM3", 81'559, 18};
constexpr Gpu kA10 = {"NVIDIA A10", 23'028, 0};

std::string scenario() {
    const char* name = std::getenv("SGPU_FAKE_NVML");
    return name ? name : "none";
}

std::vector<Gpu> machine() {
    const std::string name = scenario();
    if (name == "8xH100" || name == "mig") return std::vector<Gpu>(8, kH100);
    if (name == "2xH100") return {kH100, kH100};
    if (name == "lost") return std::vector<Gpu>(4, kH100);
    if (name == "1xA10") return {kA10};
    if (name == "mixed") return {kH100, kH100, kA10, {"NVIDIA GeForce RTX 4090", 24'564, 0}};
    return {};
}

std::vector<Use> uses() {
    std::vector<Use> found;
    const char* text = std::getenv("SGPU_FAKE_NVML_USE");
    Use one{};
    int length = 0;
    while (text && std::sscanf(text, "%d:%u:%llu%n", &one.gpu, &one.pid, &one.mib, &length) == 3) {
        found.push_back(one);
        text += length;
        if (*text == ',') ++text;
    }
    return found;
}

// What is to be told next of SGPU_FAKE_NVML_XIDS, which is then shortened by it.
bool next_xid(int* gpu, unsigned long long* xid) {
    const char* text = std::getenv("SGPU_FAKE_NVML_XIDS");
    int length = 0;
    if (!text || std::sscanf(text, "%d:%llu%n", gpu, xid, &length) != 2) return false;
    const std::string rest = text[length] == ',' ? text + length + 1 : "";
    ::setenv("SGPU_FAKE_NVML_XIDS", rest.c_str(), 1);
    return true;
}

// A handle is the number of the GPU + 1; of a slice, 1000 more for each.
using Handle = std::size_t;
constexpr Handle kSlice = 1000;
int gpu_of(Handle handle) {
    return static_cast<int>(handle % kSlice) - 1;
}
bool sliced(int gpu) {
    return scenario() == "mig" && gpu == 0;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
extern "C" {

int nvmlInit_v2() {
    const std::string name = scenario();
    if (name == "broken") return kMismatch;
    return name == "unloaded" ? kNotLoaded : kSuccess;
}
int nvmlShutdown() {
    return kSuccess;
}
const char* nvmlErrorString(int code) {
    if (code == kMismatch) return "Driver/library version mismatch";
    if (code == kNotLoaded) return "Driver Not Loaded";
    return code == kLost ? "GPU is lost" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char* to, unsigned size) {
    std::snprintf(to, size, "580.65.06");
    return kSuccess;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
    *version = 13'000;
    return kSuccess;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
    *count = static_cast<unsigned>(machine().size());
    return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* device) {
    if (index >= machine().size()) return kInvalid;
    if (scenario() == "lost" && index == 2) return kLost;
    *device = static_cast<Handle>(index) + 1;
    return kSuccess;
}
int nvmlDeviceGetName(Handle device, char* to, unsigned size) {
    std::snprintf(to, size, "%s", machine()[static_cast<std::size_t>(gpu_of(device))].name);
    return kSuccess;
}
int nvmlDeviceGetUUID(Handle device, char* to, unsigned size) {
    const char* kind = device > kSlice ? "MIG" : "GPU";
    std::snprintf(to, size, "%s-%02zu%02d0000-0000-4000-8000-000000000000", kind, device / kSlice,
                  gpu_of(device) + 10);
    return kSuccess;
}
struct FakePci {
    char legacy[16];
    unsigned rest[5];
    char id[32];
};
int nvmlDeviceGetPciInfo_v3(Handle device, FakePci* pci) {
    *pci = {};
    std::snprintf(pci->id, sizeof pci->id, "00000000:%02X:00.0", 0x1b + gpu_of(device));
    return kSuccess;
}
int nvmlDeviceGetMemoryInfo(Handle device, unsigned long long* total_free_used) {
    const int gpu = gpu_of(device);
    const auto total = machine()[static_cast<std::size_t>(gpu)].mib / (device > kSlice ? 2 : 1);
    unsigned long long used = 4;
    for (const Use& use : uses())
        if (use.gpu == gpu) used += use.mib;
    total_free_used[0] = total * kMiB;
    total_free_used[1] = (total - used) * kMiB;
    total_free_used[2] = used * kMiB;
    return kSuccess;
}
struct FakeProcess {
    unsigned pid;
    unsigned long long bytes;
    unsigned instance;
    unsigned compute;
};
int nvmlDeviceGetComputeRunningProcesses_v3(Handle device, unsigned* count, FakeProcess* to) {
    std::vector<FakeProcess> found;
    for (const Use& use : uses())
        if (use.gpu == gpu_of(device)) found.push_back({use.pid, use.mib * kMiB, 0, 0});
    const bool fits = found.size() <= *count;
    *count = static_cast<unsigned>(found.size());
    if (!fits) return kInsufficientSize;
    for (std::size_t i = 0; i < found.size(); ++i) to[i] = found[i];
    return kSuccess;
}
int nvmlDeviceGetUtilizationRates(Handle device, unsigned* gpu_memory) {
    gpu_memory[0] = 10 * static_cast<unsigned>(gpu_of(device));
    gpu_memory[1] = 0;
    return kSuccess;
}
int nvmlDeviceGetTemperature(Handle /*device*/, int sensor, unsigned* celsius) {
    *celsius = 41;
    return sensor == 0 ? kSuccess : kInvalid;
}
int nvmlDeviceGetPowerUsage(Handle /*device*/, unsigned* milliwatts) {
    *milliwatts = 120'500;
    return kSuccess;
}
int nvmlDeviceGetEnforcedPowerLimit(Handle /*device*/, unsigned* milliwatts) {
    *milliwatts = 700'000;
    return kSuccess;
}
int nvmlDeviceGetMigMode(Handle device, unsigned* now, unsigned* pending) {
    if (scenario() == "1xA10") return kNotSupported;
    *now = *pending = sliced(gpu_of(device)) ? 1 : 0;
    return kSuccess;
}
int nvmlDeviceGetMaxMigDeviceCount(Handle /*device*/, unsigned* count) {
    *count = 7;
    return kSuccess;
}
int nvmlDeviceGetMigDeviceHandleByIndex(Handle device, unsigned index, Handle* slice) {
    if (index >= 2) return kNotFound;
    *slice = device + (index + 1) * kSlice;
    return kSuccess;
}
int nvmlDeviceGetComputeMode(Handle /*device*/, int* mode) {
    *mode = 0;
    return kSuccess;
}
int nvmlDeviceGetTotalEccErrors(Handle device, int type, int counter, unsigned long long* errors) {
    if (scenario() == "1xA10" || type != 1 || counter != 0) return kNotSupported;
    *errors = scenario() == "mixed" && gpu_of(device) == 1 ? 3 : 0;
    return kSuccess;
}
int nvmlDeviceGetRemappedRows(Handle device, unsigned* corrected, unsigned* uncorrected,
                              unsigned* pending, unsigned* failed) {
    *corrected = *uncorrected = *failed = 0;
    *pending = scenario() == "mixed" && gpu_of(device) == 1 ? 1 : 0;
    return kSuccess;
}
int nvmlDeviceGetNvLinkState(Handle device, unsigned link, int* up) {
    const int links = machine()[static_cast<std::size_t>(gpu_of(device))].nvlinks;
    *up = static_cast<int>(link) < links ? 1 : 0;
    return links > 0 ? kSuccess : kNotSupported;
}
int nvmlDeviceGetNvLinkVersion(Handle /*device*/, unsigned /*link*/, unsigned* version) {
    *version = 6;  // NVML_NVLINK_VERSION_4_0
    return kSuccess;
}
int nvmlDeviceGetTopologyCommonAncestor(Handle first, Handle second, int* level) {
    *level = gpu_of(first) / 4 == gpu_of(second) / 4 ? 40 : 50;
    return kSuccess;
}
int nvmlDeviceGetMaxPcieLinkGeneration(Handle /*device*/, unsigned* generation) {
    *generation = 5;
    return kSuccess;
}
int nvmlDeviceGetMaxPcieLinkWidth(Handle /*device*/, unsigned* width) {
    *width = 16;
    return kSuccess;
}
struct FakeEvent {
    Handle device;
    unsigned long long type;
    unsigned long long data;
    unsigned instances[2];
};
int nvmlEventSetCreate(void** set) {
    static int any = 0;
    *set = &any;
    return kSuccess;
}
int nvmlEventSetFree(void* /*set*/) {
    return kSuccess;
}
int nvmlDeviceRegisterEvents(Handle device, unsigned long long types, void* /*set*/) {
    if (scenario() == "1xA10") return kNotSupported;
    return types == kCritical && device > 0 ? kSuccess : kInvalid;
}
int nvmlEventSetWait_v2(void* /*set*/, FakeEvent* event, unsigned milliseconds) {
    int gpu = 0;
    *event = {};
    event->type = kCritical;
    if (milliseconds != 0 || !next_xid(&gpu, &event->data)) return kTimeout;
    event->device = static_cast<Handle>(gpu) + 1;
    return kSuccess;
}
}
// NOLINTEND(readability-identifier-naming)
