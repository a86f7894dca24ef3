// fake_cuda.cpp: a libcuda.so.1 for machines without a GPU. Each call is a line in the file that
// SGPU_FAKE_CUDA_LOG names: "PID init VISIBLE", "PID retain DEVICE", "PID release DEVICE".
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

constexpr int kSuccess = 0;
constexpr int kNotInitialised = 3;
constexpr int kNoDevice = 100;
constexpr int kDevices = 8;

std::atomic<bool> initialised{false};

void log(const std::string& line) {
    const char* path = std::getenv("SGPU_FAKE_CUDA_LOG");
    const int fd = path ? ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    if (fd < 0) return;
    const std::string text = std::to_string(::getpid()) + " " + line + "\n";
    (void)!::write(fd, text.data(), text.size());
    ::close(fd);
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
extern "C" {

int cuInit(unsigned /*flags*/) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!initialised.exchange(true)) log(std::string("init ") + (visible ? visible : "all"));
    return kSuccess;
}
int cuDeviceGet(int* device, int ordinal) {
    if (!initialised) return kNotInitialised;
    *device = ordinal;
    return ordinal < kDevices ? kSuccess : kNoDevice;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
    static int any = 0;
    *context = &any;
    log("retain " + std::to_string(device));
    return kSuccess;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    log("release " + std::to_string(device));
    return kSuccess;
}
int cuCtxGetCurrent(void** context) {
    *context = nullptr;
    return initialised ? kSuccess : kNotInitialised;
}
}
// NOLINTEND(readability-identifier-naming)
