// rank_register.h: which processes lead a session because they are ranks, for the keeper to know.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace sgpu {

inline constexpr int kRegisterFd = 5;  // where the fork server finds the register's file

// One bit for each pid that a system can give, in a memfd that the keeper and the fork server
// share: it cannot be full, and no more of it takes memory than the pages of pids that were in it.
// A rank or service notes itself before it leaves the guard's session; from then on the keeper can
// tell it from a daemon of user code's. The keeper takes it out while the zombie still holds its
// pid.
//
// Threads: any number of processes may change it at once; a bit is changed as a whole. Destroying
// it unmaps and closes what this process has of it.
class RankRegister {
public:
    static constexpr pid_t kEnd = 4'194'304;  // pids are below, whatever pid_max says

    // Knows nobody and takes nobody.
    RankRegister() = default;
    // A new one, of a size that nobody can change. Errors: Errc::os_failure.
    static Result<RankRegister> make();
    // The one that another process has made. `fd` is closed if it is one, else left alone: it may
    // be anybody's. Errors: Errc::os_failure.
    static Result<RankRegister> open(int fd);

    ~RankRegister();
    RankRegister(RankRegister&& other) noexcept;
    RankRegister& operator=(RankRegister&& other) noexcept;
    RankRegister(const RankRegister&) = delete;
    RankRegister& operator=(const RankRegister&) = delete;

    int fd() const { return fd_.get(); }  // of one that was made here, else -1

    bool add(pid_t pid);     // false if it cannot be known
    bool remove(pid_t pid);  // whether it was in
    // What the caller has read of a process before, from /proc too, is not older than the answer.
    bool contains(pid_t pid) const;

private:
    static Result<RankRegister> map(int fd);
    bool holds(pid_t pid) const { return words_ && pid > 0 && pid < kEnd; }

    std::uint64_t* words_ = nullptr;
    UniqueFd fd_;
};

// Makes this process the leader of a session and of a group of its own, and notes it before. If
// that cannot be: the leader of a group in the session that it is in, as which the keeper knows it
// too. The register is let go of, out of user code's reach. REQUIRES: this process leads no group
// yet.
void lead_session(RankRegister ranks);

}  // namespace sgpu
