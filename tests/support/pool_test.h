// pool_test.h: tests with a pool of fake ranks, each of which ends with nothing left.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/rank_pool.h"
#include "runtime/unique_fd.h"

namespace sgpu::test {

// What any wait of these tests may take at most: far beyond what is needed, on a busy machine too.
inline constexpr std::chrono::seconds kBound{30};

// True once `fd` is readable or at its end; false after kBound.
bool readable(int fd);
std::size_t open_descriptors();
// Signals one process. False if it is not there; never a group, as ::kill(0, …) would.
bool send_signal(pid_t pid, int number);
bool exists(const std::string& path);

// Short graces, so that no test waits long for a ladder.
CallLimits short_limits();

// A folder of the test's own, removed with what is in it.
class TempFolder {
public:
    TempFolder();
    ~TempFolder();
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }
    std::size_t count() const;  // of what is in it

private:
    std::string path_;
};

// Everything that the fake fork server starts, however it detaches itself, holds one FIFO open.
class Lifeline {
public:
    explicit Lifeline(std::string path);
    const std::string& path() const { return path_; }
    // True once nothing that ever held it is left; false after kBound.
    bool all_gone() const;

private:
    std::string path_;
    UniqueFd fd_;
};

// The ends of guard, keeper and all, seen through pidfds: no pid can be another's by then.
class Watch {
public:
    explicit Watch(std::vector<pid_t> pids);
    bool all_gone() const;

private:
    std::vector<UniqueFd> pidfds_;
};

// One pool per test. At the test's end the pool is destroyed, and no process, folder or descriptor
// may be left.
class PoolTest : public ::testing::Test {
protected:
    using Words = std::vector<std::string>;

    PoolTest();
    void TearDown() override;

    PoolOptions options(const Words& fork_server = {}) const;
    void start(const Words& fork_server = {});
    // Destroys the pool and checks what is left.
    void end();

    // A call on new ranks, each doing the deed of its place; `deeds` joined by '|'.
    std::shared_ptr<CallTicket> begin(const std::vector<ChildId>& children,
                                      const std::string& deeds, CallLimits limits = short_limits());
    // Waits for its end. Outcomes are in the order of ranks.
    std::vector<RankOutcome> finish(const std::shared_ptr<CallTicket>& ticket);
    // Both, on `ranks` children that are taken for it.
    std::vector<RankOutcome> call(int ranks, const std::string& deeds,
                                  CallLimits limits = short_limits());
    // What came out until now, text and displays.
    std::vector<OutputEvent> events();
    std::string text();

    // Until that many ranks of the call have begun what does not end by itself.
    void wait_for_begun(int ranks);

    // Until the pool has told of this child's pid.
    pid_t pid_of(ChildId child);
    // The keeper, which is the warden's only child.
    pid_t keeper() const;

    TempFolder folder_;
    Lifeline lifeline_{folder_ / "lifeline"};
    std::unique_ptr<RankPool> pool_;
    std::vector<ChildId> last_;  // children of the last call()
    EndCause last_cause_ = EndCause::none;

private:
    std::size_t descriptors_before_ = 0;
};

}  // namespace sgpu::test
