// pool_life_test.cpp: spares, services, stacks, retirement, and a pool that is let go of.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <future>

#include "runtime/process_tree.h"
#include "tests/support/pool_test.h"

namespace sgpu::test {
namespace {

using namespace std::chrono_literals;

class PoolLife : public PoolTest {
protected:
    // Until the pool has this many processes.
    void wait_for_children(std::size_t count) {
        const auto limit = std::chrono::steady_clock::now() + kBound;
        while (pool_->pids().children.size() != count) {
            ASSERT_LT(std::chrono::steady_clock::now(), limit)
                << pool_->pids().children.size() << " processes, not " << count;
            std::this_thread::yield();
        }
    }

    Watch watch(const std::vector<ChildId>& children) {
        std::vector<pid_t> pids;
        for (const ChildId child : children) pids.push_back(pid_of(child));
        return Watch(pids);
    }
};

TEST_F(PoolLife, TakenRanksAreTheSparesFirstAndAreFilledUpAfterTheCall) {
    start();
    pool_->set_spares(3);
    wait_for_children(3);
    const auto spares = pool_->pids().children;
    const auto taken = pool_->take(5);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(spares.contains(taken[i])) << taken[i];
    EXPECT_EQ(finish(begin(taken, "ok")).size(), 5U);
    wait_for_children(8);
    pool_->retire(taken);
    wait_for_children(3);
    for (const auto& [id, pid] : pool_->pids().children)
        EXPECT_EQ(std::count(taken.begin(), taken.end(), id), 0) << id;
}

TEST_F(PoolLife, SparesThatStillComeUpUnderAnotherLimitOfProcessesAreNotTaken) {
    start({"--rank=mute"});
    pool_->set_spares(2);
    wait_for_children(2);
    const auto spares = pool_->pids().children;
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NPROC, &before), 0);
    const rlimit other{before.rlim_cur == RLIM_INFINITY ? 1'000'000 : before.rlim_cur - 1,
                       before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NPROC, &other), 0);
    const auto taken = pool_->take(2);
    ASSERT_EQ(::setrlimit(RLIMIT_NPROC, &before), 0);
    for (const ChildId id : taken) EXPECT_FALSE(spares.contains(id)) << id;
}

TEST_F(PoolLife, FewerSparesAreKeptWhenFewerAreWanted) {
    start();
    pool_->set_spares(4);
    wait_for_children(4);
    pool_->set_spares(1);
    wait_for_children(1);
    pool_->set_spares(0);
    wait_for_children(0);
}

TEST_F(PoolLife, MoreRanksThanOneOrderHoldsAreForked) {
    start();
    EXPECT_EQ(call(70, "ok:many")[69].frames, Words{"many"});
}

TEST_F(PoolLife, EarlyChildrenAreForkedBeforeEverythingIsImported) {
    const std::string imported = folder_ / "imported";
    ASSERT_EQ(::mkfifo(imported.c_str(), 0600), 0);
    start({"--imported=" + imported});
    const auto ready = pool_->fork_server_ready();
    const auto late = begin(pool_->take(1), "ok:late");
    const auto early = pool_->take(2, Imports::torch);
    const auto [service, up] = pool_->start_service("pause", "{}", 0ms, Imports::tracking);
    EXPECT_EQ(finish(begin(early, "ok:early"))[1].frames, Words{"early"});
    EXPECT_TRUE(readable(up->done_fd()));
    EXPECT_TRUE(up->answers().at(service).has_value());
    EXPECT_FALSE(late->done());
    EXPECT_FALSE(ready->done());
    EXPECT_TRUE(ready->answers().at(1).has_value());
    EXPECT_FALSE(ready->answers().contains(2));
    // Those that the call has used are taken away; the one for later is still to be made.
    pool_->retire(early);
    const UniqueFd done(::open(imported.c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::write(done.get(), "!", 1), 1);
    EXPECT_EQ(finish(late)[0].frames, Words{"late"});
    EXPECT_TRUE(readable(ready->done_fd()));
    EXPECT_TRUE(ready->answers().at(2).has_value());
}

TEST_F(PoolLife, SparesThatDieAtTheirStartAreNotForkedWithoutEnd) {
    start({"--rank=die"});
    pool_->set_spares(2);
    const auto ready = pool_->fork_server_ready();
    ASSERT_TRUE(readable(ready->done_fd()));
    // Each call's end is a turn in which a pool that does not rest would refill.
    std::vector<ChildId> ids;
    for (int i = 0; i < 20; ++i) {
        (void)call(1, "ok");
        ids.push_back(last_[0]);
    }
    EXPECT_LT(ids.back(), 200U) << "children were made all the time";
}

TEST_F(PoolLife, RetiredRanksEndAndAreForgotten) {
    start();
    for (int i = 0; i < 5; ++i) {
        (void)call(3, "ok|raise|die-in-output");
        const Watch ranks = watch({last_[0], last_[1]});
        pool_->retire(last_);
        EXPECT_TRUE(ranks.all_gone());
    }
    wait_for_children(0);
    EXPECT_TRUE(pool_->dead_children().empty());
}

TEST_F(PoolLife, ARankThatDiedBeforeItWasRetiredIsKnownToBeDead) {
    start();
    (void)call(2, "ok|exit:1");
    ASSERT_EQ(pool_->dead_children().size(), 1U);
    const DeadChild dead = pool_->dead_children().at(last_[1]);
    EXPECT_TRUE(dead.exit_known);
    EXPECT_EQ(WEXITSTATUS(dead.status), 1);
    pool_->retire({last_[1]});
    EXPECT_EQ(call(1, "ok")[0].state, RankState::returned);
    EXPECT_TRUE(pool_->dead_children().empty());
}

TEST_F(PoolLife, ARankThatIgnoresQuitIsKilledAfterItsTime) {
    start({"--rank=ignore-quit"});
    (void)call(2, "ok");
    const Watch ranks = watch(last_);
    pool_->retire(last_);
    EXPECT_TRUE(ranks.all_gone());
}

TEST_F(PoolLife, ARankThatIsStoppedIsRetiredToo) {
    start();
    const auto children = pool_->take(1);
    const auto ticket = begin(children, "stop-itself");
    wait_for_begun(1);
    pool_->retire(children);
    EXPECT_EQ(finish(ticket)[0].state, RankState::died);
}

TEST_F(PoolLife, KilledChildrenDieInTheirCall) {
    start();
    const auto children = pool_->take(2);
    const auto ticket = begin(children, "ignore-signals|fork-and-leave");
    wait_for_begun(1);
    pool_->kill(children);
    const auto outcomes = finish(ticket);
    EXPECT_EQ(WTERMSIG(outcomes[0].status), SIGKILL);
}

TEST_F(PoolLife, AChildThatIsRetiredWhileItIsForkedEnds) {
    start();
    for (int i = 0; i < 30; ++i) {
        const auto children = pool_->take(2);
        if (i % 2 == 0) (void)begin(children, "never");
        pool_->retire({children[0]});
        pool_->kill({children[1]});
    }
    EXPECT_EQ(call(1, "ok")[0].state, RankState::returned);
    pool_->retire(last_);
    wait_for_children(0);
}

TEST_F(PoolLife, AStuckRankShowsItsStack) {
    start();
    const auto children = pool_->take(3);
    const auto ticket = begin(children, "never|ignore-signals|ok");
    wait_for_begun(2);
    auto asked = children;
    asked.push_back(children[0]);  // twice
    asked.push_back(9999);         // nobody
    const auto query = pool_->whereabouts(asked, RankPool::Ask::stack_too);
    ASSERT_TRUE(readable(query->done_fd()));
    const auto answers = query->answers();
    ASSERT_EQ(answers.size(), 4U);
    for (const ChildId child : children) {
        ASSERT_TRUE(answers.at(child).has_value()) << child;
        EXPECT_NE(answers.at(child)->find("the fake rank's stack"), std::string::npos);
    }
    EXPECT_FALSE(answers.at(9999).has_value());
}

TEST_F(PoolLife, AQuestionToARankThatDiesIsAnswered) {
    start();
    const auto children = pool_->take(1);
    const auto ticket = begin(children, "stop-itself");
    wait_for_begun(1);
    const auto query = pool_->whereabouts(children, RankPool::Ask::stack_too);
    pool_->kill(children);
    ASSERT_TRUE(readable(query->done_fd()));
    EXPECT_FALSE(query->answers().at(children[0]).has_value());
}

TEST_F(PoolLife, AServiceSaysWhatItHasAndDiesWithThePool) {
    start();
    const auto [child, ready] = pool_->start_service("pause", "{}", 0ms, Imports::all);
    ASSERT_TRUE(readable(ready->done_fd()));
    EXPECT_EQ(ready->answers().at(child), "{\"port\":7}");
    const auto [killed, never] = pool_->start_service("pause", "no JSON", 0ms, Imports::all);
    pool_->kill({killed});
    EXPECT_TRUE(readable(never->done_fd()));
}

TEST_F(PoolLife, WhoWaitsForATicketLearnsOfThePoolsEnd) {
    start();
    const auto children = pool_->take(2);
    const auto ticket = begin(children, "ignore-signals");
    wait_for_begun(2);
    const auto waiting =
        std::async(std::launch::async, [&] { return readable(ticket->done_fd()); });
    const auto unforked = begin(pool_->take(1), "never");
    const auto query = pool_->whereabouts(children, RankPool::Ask::stack_too);
    end();
    EXPECT_TRUE(ticket->done());
    EXPECT_TRUE(unforked->done());
    EXPECT_TRUE(readable(query->done_fd()));
    EXPECT_EQ(ticket->take_outcomes()[0].state, RankState::died);
}

TEST_F(PoolLife, WhatIsAskedOfAPoolThatHasEndedIsLostAtOnce) {
    start();
    const auto children = pool_->take(2);
    const auto before = begin(children, "ignore-signals");
    wait_for_begun(2);
    pool_->end();
    EXPECT_TRUE(before->done());
    EXPECT_TRUE(pool_->broken());
    const auto after = call(2, "ok");
    ASSERT_EQ(after.size(), 2U);
    EXPECT_EQ(after[1].state, RankState::died);
    EXPECT_TRUE(readable(pool_->whereabouts(children, RankPool::Ask::stack_too)->done_fd()));
    EXPECT_TRUE(readable(pool_->fork_server_ready()->done_fd()));
    EXPECT_TRUE(readable(pool_->start_service("pause", "{}", 0ms, Imports::all).second->done_fd()));
    pool_->end();
}

TEST_F(PoolLife, AForkedChildOfTheNotebookLetsGoOfItsCopy) {
    start();
    const auto children = pool_->take(1);
    EXPECT_EQ(finish(begin(children, "ok"))[0].state, RankState::returned);
    const pid_t child = ::fork();
    if (child == 0) {
        pool_.reset();
        ::_exit(0);
    }
    ASSERT_TRUE(Watch({child}).all_gone());
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(finish(begin(children, "ok"))[0].state, RankState::returned);
}

TEST_F(PoolLife, APoolWithoutAGuardProgramIsAnErrorAndLeavesNothing) {
    ASSERT_EQ(::setenv("XDG_RUNTIME_DIR", (folder_ / "").c_str(), 1), 0);
    PoolOptions wrong = options();
    wrong.guard = folder_ / "no-such-guard";
    const auto started = RankPool::start(wrong);
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().os_errno, ENOENT);
    EXPECT_NE(started.error().message.find("no-such-guard"), std::string::npos);
    EXPECT_EQ(folder_.count(), 1U) << "only the lifeline";
    ::unsetenv("XDG_RUNTIME_DIR");
}

}  // namespace
}  // namespace sgpu::test
