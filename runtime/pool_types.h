// pool_types.h: what a pool of rank processes is asked for, and what it tells of itself.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "runtime/call.h"
#include "runtime/output_mux.h"
#include "runtime/ticket.h"
#include "runtime/unique_fd.h"

namespace sgpu {

struct PoolOptions {
    std::string guard;  // path of serverless-gpu-guard
    // Its command line. Descriptor 4 is its control socket, 5 the register of ranks
    // (rank_register.h).
    std::vector<std::string> fork_server;
};

struct CallRequest {
    struct Member {
        int rank = 0;
        ChildId child = 0;
    };
    std::vector<Member> members;  // in rank order
    int world = 0;                // ranks of the group that the members belong to
    std::string mode;             // "function" or "cell"
    std::vector<std::string> frames;
    UniqueFd buffer;  // lent to every rank
    CallLimits limits;
    OutputMux::Options output;
};

struct PoolPids {
    pid_t guard = 0;
    pid_t fork_server = 0;
    std::map<ChildId, pid_t> children;
};

// The stages of the fork server's imports, each with those before it. A child waits for the stage
// that it needs; what comes later it would have to import itself.
enum class Imports { torch, tracking, all };

}  // namespace sgpu
