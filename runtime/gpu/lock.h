// lock.h: which notebook of this machine has which GPU.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace sgpu {

// Known to all users of the machine. Not below TMPDIR, which differs from user to user.
inline constexpr const char* kLockFolder = "/tmp/serverless-gpu-locks";

// A GPU that another notebook has.
struct HeldGpu {
    std::string uuid;
    pid_t pid = 0;  // 0: not known
    std::string notebook;
};

// The GPUs that this process has. One file per GPU, locked by flock: the system releases it when
// the process ends, in whatever way. Who holds it stands in the file, for people.
//
// A GPU may be taken several times by one process; it is given back as often. A forked child shares
// the locks and would hold them beyond our end, so it calls forget(). Destruction gives all back.
// While one exists the folder itself is locked too, shared: systemd-tmpfiles then leaves it alone.
//
// Threads: one at a time.
class GpuLocks {
public:
    explicit GpuLocks(std::string folder = kLockFolder) : folder_(std::move(folder)) {}
    ~GpuLocks() { give_back_all(); }
    GpuLocks(const GpuLocks&) = delete;
    GpuLocks& operator=(const GpuLocks&) = delete;

    // Takes all of them or none, without waiting. Those that others have; empty: taken.
    // `notebook` is what others are told.
    // Errors: Errc::os_failure if the folder or a file cannot be used; nothing is taken.
    Result<std::vector<HeldGpu>> try_take(const std::vector<std::string>& uuids,
                                          const std::string& notebook);
    // Those that are not held are passed over.
    void give_back(const std::vector<std::string>& uuids);
    // In a forked child: lets go of the files without releasing the parent's locks.
    void forget();

private:
    struct Lock {
        UniqueFd file;
        int times = 0;
    };
    void give_back_all();

    const std::string folder_;
    UniqueFd folder_fd_;
    std::map<std::string, Lock> locks_;
};

}  // namespace sgpu
