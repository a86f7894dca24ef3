// guard_link.h: what the pool and the guard say to each other. One packet is one GuardPacket.
//
// The link is a SOCK_SEQPACKET socket pair. Its end on the pool's side means "end everything" to
// the guard; its end on the guard's side means "the guard is gone" to the pool.
#pragma once

#include <cstdint>

namespace sgpu {

struct GuardPacket {
    enum class Kind : std::int32_t {
        quit,        // pool -> guard: end everything and exit
        kill_tree,   // pool -> guard: end `pid` and all below it
        let_linger,  // pool -> guard: at the end, `pid` may live `number` ms longer than the rest
        start_fork_server,  // pool -> guard: carries the fork server's end of the control socket
        started,            // guard -> pool: a fork server runs as `pid`; -1: `number` is errno
        exited,             // guard -> pool: child `pid` was reaped with wait status `number`
    };
    Kind kind = Kind::quit;
    std::int32_t pid = 0;
    std::int32_t number = 0;
    std::int32_t peak_mib = 0;  // of exited: the most memory that the process has held
};

}  // namespace sgpu
