// rank_sessions_test.cpp: each rank leads a session; the keeper tells ranks from what they leave.
#include <fcntl.h>

#include <csignal>
#include <filesystem>
#include <sstream>

#include "runtime/process_tree.h"
#include "runtime/rank_register.h"
#include "tests/support/pool_test.h"

namespace sgpu::test {
namespace {

using namespace std::chrono_literals;

class RankSessions : public PoolTest {
protected:
    // What ranks have said that they left.
    std::vector<pid_t> left() {
        std::vector<pid_t> pids;
        std::istringstream words(text());
        for (std::string word; words >> word;)
            if (pid_t pid = 0; word == "left" && words >> pid) pids.push_back(pid);
        return pids;
    }

    // The keeper's own register, which no other process but the fork server holds.
    RankRegister keepers_register() const {
        const std::string folder = "/proc/" + std::to_string(keeper()) + "/fd";
        for (const auto& entry : std::filesystem::directory_iterator(folder)) {
            std::error_code ignored;
            const auto target = std::filesystem::read_symlink(entry.path(), ignored).string();
            if (!target.starts_with("/memfd:ranks")) continue;
            auto opened = RankRegister::open(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
            if (opened) return std::move(opened.value());
        }
        ADD_FAILURE() << "the keeper has no register";
        return {};
    }
};

TEST_F(RankSessions, EachRankSpareAndServiceLeadsOneOfItsOwn) {
    start();
    pool_->set_spares(1);
    const auto [service, ready] = pool_->start_service("pause", "{}", 0ms, Imports::all);
    ASSERT_TRUE(readable(ready->done_fd()));
    (void)call(2, "ok");
    const auto ranks = last_;
    const auto spare = pool_->take(1);
    (void)finish(begin(spare, "ok"));  // a child that has a pid may not have begun to run
    for (const ChildId child : {ranks[0], ranks[1], spare[0], service}) {
        const pid_t pid = pid_of(child);
        EXPECT_EQ(::getsid(pid), pid);
        EXPECT_EQ(::getpgid(pid), pid);
    }
}

TEST_F(RankSessions, ARankIsInTheRegisterUntilItsDeathIsTold) {
    start();
    (void)call(2, "ok");
    const pid_t dying = pid_of(last_[0]);
    const pid_t living = pid_of(last_[1]);
    const RankRegister ranks = keepers_register();
    EXPECT_TRUE(ranks.contains(dying));
    EXPECT_EQ(finish(begin(last_, "exit:3|ok"))[0].state, RankState::died);
    EXPECT_FALSE(ranks.contains(dying));
    EXPECT_TRUE(ranks.contains(living));
}

TEST_F(RankSessions, WithoutARegisterRanksStayInTheGuards) {
    start({"--register=none"});
    (void)call(1, "ok");
    const pid_t rank = pid_of(last_[0]);
    EXPECT_EQ(::getsid(rank), ::getsid(keeper()));
    EXPECT_EQ(::getpgid(rank), rank);
}

TEST_F(RankSessions, AGroupThatARankMadeEndsWithIt) {
    start();
    EXPECT_EQ(call(2, "group:exit|ok")[0].state, RankState::died);
    const auto pids = left();
    ASSERT_EQ(pids.size(), 1U);
    EXPECT_TRUE(Watch(pids).all_gone());
}

// With the register and without: which session ranks are in makes no difference to their daemons.
class WhatRanksLeave : public RankSessions, public ::testing::WithParamInterface<std::string> {
protected:
    void start_with_parameter() { start({"--register=" + GetParam()}); }
};

INSTANTIATE_TEST_SUITE_P(Register, WhatRanksLeave, ::testing::Values("inherited", "none"),
                         [](const auto& test) { return test.param; });

TEST_P(WhatRanksLeave, EndsWithItsRankAndNotWithAnother) {
    start_with_parameter();
    (void)call(3, "daemon|group|orphan");
    const auto kept = left();
    ASSERT_EQ(kept.size(), 3U);
    const auto neighbours = last_;
    EXPECT_EQ(call(2, "daemon:exit|die-by:9")[0].state, RankState::died);
    const auto gone = left();
    ASSERT_EQ(gone.size(), 1U);
    EXPECT_TRUE(Watch(gone).all_gone());
    EXPECT_EQ(finish(begin(neighbours, "ok"))[0].state, RankState::returned);
    EXPECT_EQ(ended_among(kept), std::vector<pid_t>{}) << "their ranks live";
    (void)finish(begin(neighbours, "exit:0|exit:0|ok"));
    EXPECT_TRUE(Watch({kept[0]}).all_gone());
}

// A rank that is being made must not be taken for what another one left.
TEST_P(WhatRanksLeave, DeathsHarmNoRankThatStarts) {
    constexpr int kRounds = 15;
    start_with_parameter();
    pool_->set_spares(4);
    for (int i = 0; i < kRounds; ++i) {
        const auto dying = pool_->take(2);
        const auto starting = pool_->take(6);
        const auto deaths = begin(dying, "daemon:exit|exit:1");
        const auto others = begin(starting, "ok");
        EXPECT_EQ(finish(deaths)[0].state, RankState::died);
        for (const RankOutcome& one : finish(others))
            ASSERT_EQ(one.state, RankState::returned) << "rank " << one.rank << ", round " << i;
        pool_->retire(starting);
    }
}

}  // namespace
}  // namespace sgpu::test
