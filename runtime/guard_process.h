// guard_process.h: the private folder of a pool and the start of its guard.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace sgpu {

struct GuardOptions {
    std::string program;  // path of serverless-gpu-guard
    // Its command line. Descriptor 4 is its control socket, 5 the register of ranks
    // (rank_register.h).
    std::vector<std::string> fork_server;
    std::string folder;  // removed by the guard at the end
};

// A new folder with mode 0700 in XDG_RUNTIME_DIR, else in TMPDIR, else in /tmp.
// Errors: Errc::os_failure if none of them can be written.
Result<std::string> make_private_folder();

// What the environment of every process below the guard holds, as NAME=value.
std::string pool_mark(const std::string& folder);

// Starts the guard with nothing inherited but `link_end` (which stays the caller's), an empty
// signal mask, default handlers and output to nowhere. The caller reaps it. Errors:
// Errc::os_failure with posix_spawn's errno.
Result<pid_t> start_guard(const GuardOptions& options, const UniqueFd& link_end);

}  // namespace sgpu
