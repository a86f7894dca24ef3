#include "runtime/nudge.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <csignal>
#include <ctime>

namespace sgpu {
namespace {

using namespace std::chrono_literals;

// The main thread of this process is the one that is nudged.
class NudgeOfThisThread : public testing::Test {
protected:
    void SetUp() override {
        sigemptyset(&urgent_);
        sigaddset(&urgent_, SIGURG);
        pthread_sigmask(SIG_BLOCK, &urgent_, &before_);
    }
    void TearDown() override { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

    bool nudged() const {
        const timespec now{0, 0};
        return sigtimedwait(&urgent_, nullptr, &now) == SIGURG;
    }

    sigset_t urgent_{};
    sigset_t before_{};
    Nudge nudge_;
    const Nudge::Clock::time_point t0_ = Nudge::Clock::now();
};

TEST_F(NudgeOfThisThread, NothingIsDueBeforeAnInterrupt) {
    EXPECT_EQ(nudge_.look(t0_ + 1h), -1);
    EXPECT_FALSE(nudged());
}

TEST_F(NudgeOfThisThread, ComesEverMoreSeldomAndThenNoMore) {
    nudge_.begin(t0_);
    int times = 0;
    auto at = t0_;
    for (int wait = nudge_.look(at), last = 0; wait >= 0; wait = nudge_.look(at)) {
        EXPECT_GT(wait, last);
        EXPECT_FALSE(nudged()) << "before its time";
        last = wait;
        at += std::chrono::milliseconds(wait);
        ASSERT_LT(++times, 100);
        nudge_.look(at);
        EXPECT_TRUE(nudged());
    }
    EXPECT_EQ(times, 9);
    EXPECT_EQ(at - t0_, 5110ms);
}

TEST_F(NudgeOfThisThread, EndsWhenTheInterruptIsSeen) {
    nudge_.begin(t0_);
    EXPECT_EQ(nudge_.look(t0_), 10);
    nudge_.end();
    EXPECT_EQ(nudge_.look(t0_ + 10ms), -1);
    EXPECT_FALSE(nudged());
}

TEST_F(NudgeOfThisThread, CodeThatIgnoresInterruptsIsLeftInPeace) {
    const auto before = std::signal(SIGINT, SIG_IGN);
    nudge_.begin(t0_);
    EXPECT_EQ(nudge_.look(t0_ + 10ms), 20) << "it may listen again by then";
    EXPECT_FALSE(nudged());
    std::signal(SIGINT, before);
    nudge_.look(t0_ + 30ms);
    EXPECT_TRUE(nudged());
}

TEST_F(NudgeOfThisThread, ASecondInterruptBeginsAnew) {
    nudge_.begin(t0_);
    nudge_.look(t0_ + 10ms);
    EXPECT_TRUE(nudged());
    nudge_.begin(t0_ + 15ms);
    EXPECT_EQ(nudge_.look(t0_ + 15ms), 10);
}

}  // namespace
}  // namespace sgpu
