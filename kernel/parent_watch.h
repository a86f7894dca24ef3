// parent_watch.h: sees the end of the process that started us.
#pragma once

#include <sys/types.h>

#include "runtime/unique_fd.h"

namespace sgpu {

// Watches the process that JPY_PARENT_PID names if we descend from it, else our parent; nobody if
// that is process 1, which outlives us. (Not PR_SET_PDEATHSIG: it fires when the parent's *thread*
// ends, and servers start kernels from threads that end.)
//
// Threads: one at a time.
class ParentWatch {
public:
    ParentWatch();

    // Readable once the parent is gone; -1 where the system has no such descriptors (Linux < 5.3)
    // or nobody is watched. Stays owned by this object.
    int fd() const { return pidfd_.get(); }

    // Asks the system. Works without fd(), too.
    bool parent_gone() const;

private:
    pid_t parent_ = 0;  // 0: nobody is watched
    pid_t direct_parent_ = 0;
    UniqueFd pidfd_;
};

}  // namespace sgpu
