// guard_faults_test.cpp: the fork server or half of the guard dies while the notebook works on.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>

#include "tests/support/pool_test.h"

namespace sgpu::test {
namespace {

using namespace std::chrono_literals;

class ForkServerFaults : public PoolTest {
protected:
    void kill_fork_server() {
        const auto ready = pool_->fork_server_ready();
        ASSERT_TRUE(readable(ready->done_fd()));
        const auto limit = std::chrono::steady_clock::now() + kBound;
        pid_t pid = 0;
        while ((pid = pool_->pids().fork_server) <= 0 || pid == killed_) {
            ASSERT_LT(std::chrono::steady_clock::now(), limit) << "the guard says nothing";
            std::this_thread::yield();
        }
        killed_ = pid;
        const Watch server({pid});
        ASSERT_TRUE(send_signal(pid, SIGKILL));
        ASSERT_TRUE(server.all_gone());
    }

private:
    pid_t killed_ = 0;
};

TEST_F(ForkServerFaults, AnotherOneIsStartedForTheNextCall) {
    start();
    for (int i = 0; i < 3; ++i) {
        kill_fork_server();
        EXPECT_EQ(call(2, "ok")[1].state, RankState::returned);
        EXPECT_EQ(::getsid(pid_of(last_[1])), pid_of(last_[1])) << "its ranks lead no session";
        EXPECT_EQ(pool_->trouble(), "the fork server ended");
        EXPECT_FALSE(pool_->broken());
    }
}

TEST_F(ForkServerFaults, ItsDeathDuringACallHarmsNobody) {
    start();
    const auto children = pool_->take(2);
    const auto ticket = begin(children, "obey");
    (void)pid_of(children[1]);
    kill_fork_server();
    EXPECT_FALSE(ticket->done());
    pool_->stop(ticket->id());
    EXPECT_EQ(finish(ticket)[0].frames, Words{"stop"});
    EXPECT_EQ(finish(begin(children, "ok"))[0].state, RankState::returned);
}

TEST_F(ForkServerFaults, OneThatDiesAtItsStartFailsTheCallAndIsTriedAnew) {
    start({"--start=die"});
    for (int i = 0; i < 3; ++i) {
        const auto outcomes = call(2, "ok");
        EXPECT_EQ(outcomes[0].state, RankState::died);
        EXPECT_FALSE(outcomes[0].exit_known);
    }
    const auto ready = pool_->fork_server_ready();
    ASSERT_TRUE(readable(ready->done_fd()));
    EXPECT_FALSE(ready->answers().at(0).has_value());
}

TEST_F(ForkServerFaults, OneThatIsKilledWhileItComesUpIsReplacedForTheSameCall) {
    start({"--start=die-once:" + (folder_ / "died")});
    EXPECT_EQ(call(2, "ok")[0].state, RankState::returned);
}

TEST_F(ForkServerFaults, OneThatDiesAtItsFirstStartServesTheNextCall) {
    start({"--start=die-once:" + (folder_ / "died")});
    const auto ready = pool_->fork_server_ready();
    ASSERT_TRUE(readable(ready->done_fd()));
    EXPECT_FALSE(ready->answers().at(0).has_value());
    EXPECT_EQ(call(2, "ok")[0].state, RankState::returned);
}

TEST_F(ForkServerFaults, OneThatDiesAtALaterStartIsNotStartedWithoutEnd) {
    start({"--start=die-if:" + (folder_ / "broken")});
    EXPECT_EQ(call(1, "ok")[0].state, RankState::returned);
    std::filesystem::create_directory(folder_ / "broken");
    kill_fork_server();
    EXPECT_EQ(call(1, "ok")[0].state, RankState::died);
}

TEST_F(ForkServerFaults, ACallWaitsForAStartThatHangsOnlyUntilItsDeadlineOrStop) {
    start({"--start=hang"});
    CallLimits limits = short_limits();
    limits.timeout = 50ms;
    EXPECT_EQ(call(1, "ok", limits)[0].state, RankState::died);
    EXPECT_EQ(last_cause_, EndCause::deadline);
    const auto ticket = begin(pool_->take(1), "ok");
    pool_->stop(ticket->id());
    EXPECT_EQ(finish(ticket)[0].state, RankState::died);
    EXPECT_EQ(last_cause_, EndCause::stop);
    EXPECT_EQ(ticket->view().pressure, Pressure::asked) << "what was not forked needs no force";
}

TEST_F(ForkServerFaults, AProgramThatCannotBeStartedFailsTheCall) {
    PoolOptions wrong = options();
    wrong.fork_server[0] = folder_ / "no-such-program";
    auto started = RankPool::start(wrong);
    ASSERT_TRUE(started);
    pool_ = std::move(started.value());
    EXPECT_EQ(call(1, "ok")[0].state, RankState::died);
    pool_.reset();
}

TEST_F(ForkServerFaults, AForkThatTheSystemRefusesFailsTheCall) {
    start({"--fork=fail"});
    pool_->set_spares(2);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(call(2, "ok")[0].state, RankState::died);
    EXPECT_LT(pool_->take(1)[0], 200U) << "children were ordered all the time";
}

class GuardFaults : public PoolTest {
protected:
    void expect_lost(const std::shared_ptr<CallTicket>& ticket) {
        const auto outcomes = finish(ticket);
        EXPECT_EQ(outcomes[0].state, RankState::died);
        EXPECT_TRUE(pool_->broken());
        EXPECT_EQ(pool_->trouble(), "the guard process ended, and all ranks with it");
        EXPECT_EQ(call(1, "ok")[0].state, RankState::died) << "a call on a broken pool";
        const auto ready = pool_->fork_server_ready();
        ASSERT_TRUE(readable(ready->done_fd()));
        EXPECT_FALSE(ready->answers().at(0).has_value());
        const auto [child, service] = pool_->start_service("pause", "{}", 0ms, Imports::all);
        ASSERT_TRUE(readable(service->done_fd()));
        EXPECT_FALSE(service->answers().at(child).has_value());
    }
};

TEST_F(GuardFaults, WhenTheKeeperIsKilledEverythingEndsAndThePoolSaysSo) {
    start();
    (void)call(2, "daemon|fork-and-leave");
    const auto ticket = begin(pool_->take(2), "ignore-signals|stop-itself");
    wait_for_begun(2);
    ASSERT_TRUE(send_signal(keeper(), SIGKILL));
    expect_lost(ticket);
    EXPECT_TRUE(lifeline_.all_gone());
}

TEST_F(GuardFaults, WhenTheWardenIsKilledEverythingEndsAndThePoolSaysSo) {
    start();
    (void)call(2, "daemon|fork-and-leave");
    const auto ticket = begin(pool_->take(2), "ignore-signals|stop-itself");
    wait_for_begun(2);
    ASSERT_TRUE(send_signal(pool_->pids().guard, SIGKILL));
    expect_lost(ticket);
    EXPECT_TRUE(lifeline_.all_gone());
}

TEST_F(GuardFaults, WhenBothHalvesAreKilledRanksEndAndThePoolEndsTheRest) {
    start();
    (void)call(2, "fork-and-leave");
    const auto ticket = begin(pool_->take(2), "never");
    wait_for_begun(2);
    const pid_t halves[] = {keeper(), pool_->pids().guard};
    for (const pid_t half : halves) ASSERT_TRUE(send_signal(half, SIGSTOP));
    for (const pid_t half : halves) ASSERT_TRUE(send_signal(half, SIGKILL));
    expect_lost(ticket);
}

TEST_F(GuardFaults, APoolEndsThoughItsGuardIsStopped) {
    start();
    (void)call(2, "daemon|fork-and-leave");
    ASSERT_TRUE(send_signal(keeper(), SIGSTOP));
}

TEST_F(GuardFaults, AStopOfTheNotebooksProcessGroupDoesNotReachAGuardThatStarts) {
    ASSERT_TRUE(::setpgid(0, 0) == 0 || ::getpgrp() == ::getpid());  // nobody else gets them
    const auto before = ::signal(SIGINT, SIG_IGN);
    std::atomic<bool> over = false;
    std::thread presses([&] {
        while (!over) ::kill(0, SIGINT);
    });
    for (int i = 0; i < 10; ++i) {
        auto started = RankPool::start(options());
        EXPECT_TRUE(started);
        if (!started) break;
        pool_ = std::move(started.value());
        EXPECT_EQ(call(1, "ok")[0].state, RankState::returned) << pool_->trouble();
        pool_.reset();
    }
    over = true;
    presses.join();
    ::signal(SIGINT, before);
}

TEST_F(GuardFaults, AWardenKilledRightBeforeThePoolsEndLeavesNothing) {
    start();
    (void)call(3, "daemon|daemon|fork-and-leave");
    ASSERT_TRUE(send_signal(pool_->pids().guard, SIGKILL));
}

}  // namespace
}  // namespace sgpu::test
