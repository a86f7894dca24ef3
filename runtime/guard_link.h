// guard_link.h: what the pool and the guard say to each other. One packet is one GuardPacket.
//
// The link is a SOCK_SEQPACKET socket pair. Its end on the pool's side means "end everything" to
// the guard; its end on the guard's side means "the guard is gone" to the pool.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace sgpu {

struct GuardPacket {
    enum class Kind : std::int32_t {
        quit,        // pool -> guard: end everything and exit
        kill_tree,   // pool -> guard: end `pid` and all below it
        let_linger,  // pool -> guard: at the end, `pid` may live `number` ms longer than the rest
        start_fork_server,  // pool -> guard: carries the fork server's end of the control socket;
                            // `number`: as process_limit() gives it
        started,            // guard -> pool: a fork server runs as `pid`; -1: `number` is errno
        exited,             // guard -> pool: child `pid` was reaped with wait status `number`
    };
    Kind kind = Kind::quit;
    std::int32_t pid = 0;
    std::int32_t number = 0;
    std::int32_t peak_mib = 0;  // of exited: the most memory that the process has held
};

// The soft limit of processes (ulimit -u) of this process; -1: none. What lives below the notebook
// follows it, so that raising it there is enough.
inline std::int32_t process_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NPROC, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
    return static_cast<std::int32_t>(
        std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<std::int32_t>::max()));
}

// Takes over the limit of another process, as far as the hard limit of this one allows.
inline void follow_process_limit(std::int32_t soft) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NPROC, &limit) != 0) return;
    limit.rlim_cur =
        soft < 0 ? limit.rlim_max : std::min<rlim_t>(static_cast<rlim_t>(soft), limit.rlim_max);
    ::setrlimit(RLIMIT_NPROC, &limit);
}

}  // namespace sgpu
