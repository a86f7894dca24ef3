// event_fd.h: wakes a thread that waits in poll.
#pragma once

#include <sys/eventfd.h>

#include <cstdint>

#include "runtime/unique_fd.h"

namespace sgpu {

// A counter in the kernel of the operating system, used as a flag. Holds -1 if the process is out
// of descriptors: then notify() does nothing and poll ignores it.
//
// Threads: any thread may call any function.
class EventFd {
public:
    EventFd() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

    int fd() const { return fd_.get(); }

    // Makes fd() readable. Async-signal-safe.
    void notify() const {
        const std::uint64_t one = 1;
        (void)!::write(fd_.get(), &one, sizeof one);
    }

    // True if there was a notification since the last call.
    bool take() const {
        std::uint64_t count = 0;
        return ::read(fd_.get(), &count, sizeof count) == static_cast<ssize_t>(sizeof count);
    }

private:
    UniqueFd fd_;
};

}  // namespace sgpu
