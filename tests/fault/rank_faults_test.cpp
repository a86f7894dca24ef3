// rank_faults_test.cpp: ranks that misbehave in a call. Each call ends, with the right word for it.
#include <sys/wait.h>

#include <csignal>

#include "tests/support/pool_test.h"

namespace sgpu::test {
namespace {

using namespace std::chrono_literals;
using RankFaults = PoolTest;

void expect_killed_by(int signal, const RankOutcome& outcome) {
    EXPECT_EQ(outcome.state, RankState::died);
    ASSERT_TRUE(outcome.exit_known);
    ASSERT_TRUE(WIFSIGNALED(outcome.status));
    EXPECT_EQ(WTERMSIG(outcome.status), signal);
}

TEST_F(RankFaults, GoodRanksAnswer) {
    start();
    const auto outcomes = call(3, "ok:fine");
    for (int rank = 0; rank < 3; ++rank) {
        const RankOutcome& one = outcomes[static_cast<std::size_t>(rank)];
        EXPECT_EQ(one.rank, rank);
        EXPECT_EQ(one.state, RankState::returned);
        EXPECT_EQ(one.frames, Words{"fine"});
    }
    EXPECT_EQ(text(), "[0-2] hello\n");
    EXPECT_EQ(last_cause_, EndCause::none);
}

TEST_F(RankFaults, TheSameRanksServeManyCalls) {
    start();
    const auto children = pool_->take(2);
    for (int i = 0; i < 50; ++i) {
        const std::string word = std::to_string(i);
        const auto outcomes = finish(begin(children, "ok:" + word + "|raise:" + word));
        ASSERT_EQ(outcomes[0].state, RankState::returned);
        ASSERT_EQ(outcomes[1].state, RankState::raised);
        ASSERT_EQ(outcomes[0].frames, Words{word});
        ASSERT_EQ(text(), "[0] hello\n");
    }
}

TEST_F(RankFaults, WhatADyingRankWroteIsShown) {
    start();
    const auto outcomes = call(2, "die-in-output|ok");
    expect_killed_by(SIGKILL, outcomes[0]);
    EXPECT_EQ(outcomes[1].state, RankState::returned);
    EXPECT_EQ(last_cause_, EndCause::failure);
    const std::string shown = text();
    EXPECT_NE(shown.find("[0] a whole line\n"), std::string::npos) << shown;
    EXPECT_NE(shown.find("[0] half a li"), std::string::npos) << shown;
    EXPECT_NE(shown.find("[0] trouble"), std::string::npos) << shown;
}

TEST_F(RankFaults, AnExitWithoutAnAnswerIsADeathWithItsCode) {
    start();
    for (const int code : {0, 7, 255}) {
        const auto outcomes = call(1, "exit:" + std::to_string(code));
        EXPECT_EQ(outcomes[0].state, RankState::died);
        ASSERT_TRUE(outcomes[0].exit_known);
        ASSERT_TRUE(WIFEXITED(outcomes[0].status));
        EXPECT_EQ(WEXITSTATUS(outcomes[0].status), code);
    }
}

TEST_F(RankFaults, ADeathByASignalIsADeathWithItsSignal) {
    start();
    for (const int number : {SIGSEGV, SIGABRT, SIGTERM, SIGPIPE}) {
        const auto outcomes = call(1, "die-by:" + std::to_string(number));
        expect_killed_by(number, outcomes[0]);
    }
}

TEST_F(RankFaults, AnAnswerArrivesThoughItsRankIsKilledAtOnce) {
    start();
    for (int i = 0; i < 20; ++i) {
        const auto outcomes = call(2, "done-and-die|done-with-buffer-and-die:payload");
        EXPECT_EQ(outcomes[0].state, RankState::returned);
        EXPECT_EQ(outcomes[0].frames, Words{"before death"});
        EXPECT_EQ(outcomes[1].state, RankState::returned);
        char content[16] = {};
        ASSERT_EQ(::pread(outcomes[1].buffer.get(), content, sizeof content, 0), 7);
        EXPECT_STREQ(content, "payload");
        EXPECT_EQ(last_cause_, EndCause::none);
    }
}

TEST_F(RankFaults, TheFirstOfTwoAnswersCounts) {
    start();
    const auto outcomes = call(1, "double-done");
    EXPECT_EQ(outcomes[0].state, RankState::returned);
    EXPECT_EQ(outcomes[0].frames, Words{"first"});
    const auto next = finish(begin(last_, "ok:next"));
    EXPECT_EQ(next[0].frames, Words{"next"});
}

TEST_F(RankFaults, ARankThatTalksRubbishIsKilled) {
    start();
    for (const std::string deed :
         {"garbage:SG", "garbage:hello pool", "empty-packet", "long-packet", "deep-json"}) {
        const auto outcomes = call(2, deed + "|ok");
        EXPECT_EQ(outcomes[0].state, RankState::died) << deed;
        ASSERT_TRUE(outcomes[0].exit_known) << deed;
        EXPECT_TRUE(WIFSIGNALED(outcomes[0].status)) << deed;
        EXPECT_EQ(outcomes[1].state, RankState::returned) << deed;
    }
}

TEST_F(RankFaults, ARankThatClosesItsChannelEndsInAWayThatSaysIt) {
    start();
    const auto outcomes = call(2, "close-all|ok");
    expect_killed_by(kChannelLost, outcomes[0]);
    EXPECT_EQ(outcomes[1].state, RankState::returned);
}

TEST_F(RankFaults, ARankOfAnotherVersionIsKilled) {
    start({"--rank=wrong-version"});
    const auto outcomes = call(2, "ok");
    for (const RankOutcome& one : outcomes) {
        EXPECT_EQ(one.state, RankState::died);
        EXPECT_TRUE(WIFSIGNALED(one.status));
    }
}

TEST_F(RankFaults, ARankThatNeverSaysHelloMayStillAnswer) {
    start({"--rank=no-hello"});
    EXPECT_EQ(call(2, "ok")[1].frames, Words{"no hello"});
}

TEST_F(RankFaults, ARankThatDiesAtItsStartHasItsExitCode) {
    start({"--rank=die"});
    const auto outcomes = call(2, "ok");
    EXPECT_EQ(outcomes[0].state, RankState::died);
    EXPECT_EQ(WEXITSTATUS(outcomes[0].status), 5);
}

TEST_F(RankFaults, ARequestThatFitsNoPacketEndsTheCall) {
    start();
    const auto outcomes = call(2, "ok:" + std::string(5'000'000, 'x'));
    EXPECT_EQ(outcomes[0].state, RankState::died);
    EXPECT_EQ(outcomes[1].state, RankState::died);
}

TEST_F(RankFaults, OthersThatWaitForAFailedRankAreInterruptedAndThenKilled) {
    start();
    const auto outcomes = call(4, "raise:boom|obey|ignore-signals|stop-itself");
    EXPECT_EQ(outcomes[0].state, RankState::raised);
    EXPECT_FALSE(outcomes[0].consequence);
    EXPECT_EQ(outcomes[1].state, RankState::raised);
    EXPECT_EQ(outcomes[1].frames, Words{"peer"});
    EXPECT_TRUE(outcomes[1].consequence);
    for (const std::size_t rank : {2U, 3U}) {
        EXPECT_EQ(outcomes[rank].state, RankState::died);
        EXPECT_EQ(WTERMSIG(outcomes[rank].status), SIGKILL);
        EXPECT_TRUE(outcomes[rank].consequence);
    }
    EXPECT_EQ(last_cause_, EndCause::failure);
}

TEST_F(RankFaults, StopEndsEveryRankInItsWay) {
    start();
    const auto ticket =
        begin(pool_->take(5), "obey|never|ignore-signals|stop-itself|flood-for-ever");
    wait_for_begun(3);
    pool_->stop(ticket->id());
    const auto outcomes = finish(ticket);
    EXPECT_EQ(last_cause_, EndCause::stop);
    EXPECT_EQ(outcomes[0].frames, Words{"stop"});
    for (const std::size_t rank : {1U, 2U, 3U, 4U})
        EXPECT_EQ(WTERMSIG(outcomes[rank].status), SIGKILL) << rank;
}

TEST_F(RankFaults, TheDeadlineTakesTheStacksOfThoseThatStillRun) {
    start();
    (void)call(3, "ok");
    CallLimits limits = short_limits();
    limits.timeout = 1s;
    const auto ticket = begin(last_, "ok|obey|never", limits);
    const auto outcomes = finish(ticket);
    EXPECT_EQ(last_cause_, EndCause::deadline);
    EXPECT_EQ(outcomes[0].state, RankState::returned);
    EXPECT_EQ(outcomes[1].frames, Words{"deadline"});
    EXPECT_EQ(outcomes[2].state, RankState::died);
    const auto stacks = ticket->view().stacks;
    EXPECT_FALSE(stacks.contains(0));
    ASSERT_TRUE(stacks.contains(2));
    EXPECT_NE(stacks.at(2).find("the fake rank's stack"), std::string::npos);
}

TEST_F(RankFaults, AStopForAnotherCallDoesNothing) {
    start();
    const auto children = pool_->take(1);
    const auto first = begin(children, "ok");
    finish(first);
    const auto second = begin(children, "obey");
    pool_->stop(first->id());
    pool_->stop(9999);
    EXPECT_FALSE(second->done());
    pool_->stop(second->id());
    EXPECT_EQ(finish(second)[0].frames, Words{"stop"});
}

}  // namespace
}  // namespace sgpu::test
