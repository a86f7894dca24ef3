// rank_faults_test.cpp: ranks that misbehave in a call. Each call ends, with the right word for it.
#include <sys/wait.h>

#include <csignal>

#include "tests/support/pool_test.h"

namespace sgpu::test {
namespace {

using RankFaults = PoolTest;

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

}  // namespace
}  // namespace sgpu::test
