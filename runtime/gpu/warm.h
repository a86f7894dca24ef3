// warm.h: a CUDA context made ahead of the code that needs it.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "runtime/event_fd.h"

namespace sgpu {

inline constexpr const char* kCudaLibrary = "libcuda.so.1";

// Whether this process has initialised CUDA: a child that it forks then cannot use it. Initialises
// nothing, and does not load the driver's library if nobody has.
bool cuda_in_use(const std::string& library = kCudaLibrary);

// Makes the primary context of a device by the driver's own interface, in a thread of its own, and
// keeps it: what torch does at its first use of the device, half a second of work, is then done.
// Where there is no driver nothing happens; what goes wrong shows again in the code that needs it.
//
// Code of users that forks before its first use of CUDA and uses it in the child works in a cold
// rank and not in a warm one, as after any other use of CUDA.
//
// Threads: constructed and used by one thread, the process's main one. The worker takes no signals.
// Destroying it waits for what is under way; a forked child's copy only lets go.
class ContextWarmer {
public:
    explicit ContextWarmer(std::string library = kCudaLibrary) : library_(std::move(library)) {}
    ~ContextWarmer();
    ContextWarmer(const ContextWarmer&) = delete;
    ContextWarmer& operator=(const ContextWarmer&) = delete;

    // Begins with it and returns. A context of another device made before is given up. The first
    // request decides for the process's life which GPUs CUDA sees: `visible` becomes
    // CUDA_VISIBLE_DEVICES, absent unsets it.
    void want(int device, const std::optional<std::string>& visible);

    // Waits for what was wanted to be done. To be called before user code: the driver reads the
    // environment while it starts, and whoever changes that meanwhile crashes the process. The
    // context is what that code would wait for anyway.
    void settle();

private:
    void work();
    void make_contexts();

    const std::string library_;
    int owner_ = 0;  // the process that started the thread
    std::mutex mutex_;
    std::optional<int> wanted_;
    bool busy_ = false;   // the worker is in the driver
    bool ended_ = false;  // the worker has: nothing that is wanted is done any more
    bool stop_ = false;
    EventFd changed_;  // a condition variable could not be destroyed in a forked child
    EventFd settled_;  // busy_ has become false
    std::thread thread_;
};

}  // namespace sgpu
