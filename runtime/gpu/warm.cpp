#include "runtime/gpu/warm.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace sgpu {
namespace {

constexpr int kSuccess = 0;
constexpr int kNotInitialised = 3;
constexpr int kLookMs = 100;  // if there is no descriptor to be told by

using Context = void*;

// The functions of the driver that are needed, by their documented binary interface.
struct Cuda {
    int (*init)(unsigned) = nullptr;
    int (*device)(int*, int) = nullptr;
    int (*retain)(Context*, int) = nullptr;
    int (*release)(int) = nullptr;

    static std::optional<Cuda> load(const std::string& library) {
        void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!handle) return std::nullopt;
        Cuda cuda;
        find(handle, "cuInit", cuda.init);
        find(handle, "cuDeviceGet", cuda.device);
        find(handle, "cuDevicePrimaryCtxRetain", cuda.retain);
        find(handle, "cuDevicePrimaryCtxRelease_v2", cuda.release);
        if (!cuda.init || !cuda.device || !cuda.retain || !cuda.release) return std::nullopt;
        return cuda;
    }

private:
    template <class Function>
    static void find(void* library, const char* name, Function*& function) {
        function = reinterpret_cast<Function*>(::dlsym(library, name));
    }
};

// The context of one device at most. It is not given back at the end: the process's end does that.
class Held {
public:
    explicit Held(const Cuda& cuda) : cuda_(cuda) {}

    void hold(int ordinal) {
        int device = 0;
        Context context = nullptr;
        if (ordinal == ordinal_ || cuda_.init(0) != kSuccess ||
            cuda_.device(&device, ordinal) != kSuccess ||
            cuda_.retain(&context, device) != kSuccess)
            return;
        if (ordinal_ >= 0) cuda_.release(device_);
        device_ = device;
        ordinal_ = ordinal;
    }

private:
    const Cuda& cuda_;
    int device_ = 0;
    int ordinal_ = -1;  // -1: none is held
};

}  // namespace

bool cuda_in_use(const std::string& library) {
    void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (!handle) return false;
    auto* current = reinterpret_cast<int (*)(Context*)>(::dlsym(handle, "cuCtxGetCurrent"));
    Context context = nullptr;
    const bool used = current && current(&context) != kNotInitialised;
    ::dlclose(handle);  // only the count that dlopen has added
    return used;
}

ContextWarmer::~ContextWarmer() {
    if (!thread_.joinable()) return;
    if (::getpid() != owner_) {
        thread_.detach();
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify();
    thread_.join();
}

void ContextWarmer::want(int device, const std::optional<std::string>& visible) {
    if (!thread_.joinable()) {
        // Before CUDA reads it, and while no other thread of this process reads the environment.
        if (visible)
            ::setenv("CUDA_VISIBLE_DEVICES", visible->c_str(), 1);
        else
            ::unsetenv("CUDA_VISIBLE_DEVICES");
        owner_ = ::getpid();
        sigset_t all;
        sigset_t before;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        busy_ = true;  // it begins with loading the driver's library
        try {
            thread_ = std::thread([this] { work(); });
        } catch (const std::system_error&) {
            busy_ = false;  // out of threads: the rank stays cold
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    {
        const std::lock_guard lock(mutex_);
        wanted_ = device;
    }
    changed_.notify();
}

void ContextWarmer::settle() {
    if (!thread_.joinable() || ::getpid() != owner_) return;
    for (;;) {
        {
            const std::lock_guard lock(mutex_);
            if (!busy_ && (!wanted_ || ended_)) return;
        }
        pollfd item{settled_.fd(), POLLIN, 0};
        ::poll(&item, 1, kLookMs);
        settled_.take();
    }
}

void ContextWarmer::work() {
    ::prctl(PR_SET_NAME, "sgpu-warm");
    make_contexts();
    {
        const std::lock_guard lock(mutex_);
        busy_ = false;
        ended_ = true;
    }
    settled_.notify();
}

void ContextWarmer::make_contexts() {
    const auto cuda = Cuda::load(library_);
    if (!cuda) return;
    Held held(*cuda);
    for (;;) {
        std::optional<int> device;
        {
            const std::lock_guard lock(mutex_);
            if (stop_) return;
            device = std::exchange(wanted_, std::nullopt);
            busy_ = device.has_value();
        }
        if (device) {
            held.hold(*device);
            continue;
        }
        settled_.notify();
        pollfd item{changed_.fd(), POLLIN, 0};
        ::poll(&item, 1, -1);
        if (item.revents & POLLNVAL) return;  // user code has closed what is ours
        changed_.take();
    }
}

}  // namespace sgpu
