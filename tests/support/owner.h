// owner.h: a process that owns a pool as a notebook does, to be killed by a test.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime/rank_pool.h"
#include "runtime/unique_fd.h"

namespace sgpu::test {

// Forks; the child starts the pool, calls `work`, and says that it is ready; then it waits for the
// test's word, calls `end` and says what that returned.
//
// REQUIRES: this process has one thread, so no pool of its own.
class Owner {
public:
    struct Plan {
        PoolOptions options;
        std::function<void(RankPool&)> work;
        std::function<std::string(RankPool&)> end = nullptr;
    };

    explicit Owner(const Plan& plan);
    ~Owner();
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;

    // What the child said when it was ready. Empty and 0 if it never was.
    const std::string& folder() const { return folder_; }
    pid_t warden() const { return warden_; }
    pid_t keeper() const { return keeper_; }
    const std::vector<pid_t>& ranks() const { return ranks_; }
    pid_t pid() const { return pid_; }

    // Kills the owner as a crash would and reaps it.
    void kill();
    // Lets the child call `end`; what it returned, "" if the child has died.
    std::string finish();

private:
    std::string read_line();

    pid_t pid_ = 0;
    UniqueFd from_child_;
    UniqueFd to_child_;
    std::string folder_;
    pid_t warden_ = 0;
    pid_t keeper_ = 0;
    std::vector<pid_t> ranks_;
};

}  // namespace sgpu::test
