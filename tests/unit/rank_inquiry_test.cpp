#include "runtime/rank_inquiry.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

namespace sgpu {
namespace {

using namespace std::chrono_literals;
using Clock = RankInquiry::Clock;

constexpr int kPatienceMs = 10'000;

// What faulthandler is in a rank: writes at the signal, then runs the handler that was there
// before.
class Faulthandler {
public:
    Faulthandler() {
        install_dump_signal(number());
        struct sigaction action {};
        action.sa_handler = [](int signum) {
            (void)!::write(dump_fd_, "in train", 8);
            chained_(signum);
        };
        struct sigaction before {};
        ::sigaction(number(), &action, &before);
        chained_ = before.sa_handler;
    }
    static int number() { return SIGRTMIN + 6; }
    static int fd() { return dump_fd_; }

private:
    inline static const int dump_fd_ = ::memfd_create("stacks", MFD_CLOEXEC);
    inline static void (*chained_)(int) = nullptr;
};

RankInquiry inquiry(std::function<std::string()> hook) {
    return RankInquiry({Faulthandler::number(), Faulthandler::fd(), std::move(hook)});
}

// The answer, once there is one; at the latest when the inquiry's own bound has passed.
RankInquiry::Answer answer_of(RankInquiry& asked) {
    for (;;) {
        if (auto answer = asked.look(Clock::now())) return *answer;
        pollfd item{asked.ready_fd(), POLLIN, 0};
        if (::poll(&item, 1, kPatienceMs) == 0) {
            auto answer = asked.look(Clock::now());
            if (!answer) ADD_FAILURE() << "no answer long after the bound";
            return answer.value_or(RankInquiry::Answer{});
        }
    }
}

TEST(RankInquiry, GivesTheStackAndWhatPythonKnows) {
    const Faulthandler installed;
    RankInquiry asked = inquiry([] { return std::string("waits in barrier"); });
    asked.begin(7, true, Clock::now());
    EXPECT_TRUE(asked.running());
    const auto answer = answer_of(asked);
    EXPECT_EQ(answer.tokens, std::deque<std::uint64_t>{7});
    EXPECT_EQ(answer.stack, "in train");
    EXPECT_EQ(answer.collectives, "waits in barrier");
    EXPECT_FALSE(asked.running());
}

TEST(RankInquiry, LeavesTheMainThreadAloneIfOnlyCollectivesAreWanted) {
    const Faulthandler installed;
    RankInquiry asked = inquiry([] { return std::string("[]"); });
    asked.begin(1, false, Clock::now());
    const auto answer = answer_of(asked);
    EXPECT_EQ(answer.stack, "");
    EXPECT_EQ(answer.collectives, "[]");
}

TEST(RankInquiry, AnswersAllThatAskWhileItRuns) {
    const Faulthandler installed;
    RankInquiry asked = inquiry({});
    asked.begin(1, true, Clock::now());
    asked.begin(2, false, Clock::now());
    EXPECT_EQ(answer_of(asked).tokens, (std::deque<std::uint64_t>{1, 2}));
}

// A main thread that keeps the GIL keeps the hook too. Its thread may only be there once.
TEST(RankInquiry, AHookThatDoesNotComeBackIsWaitedForWithABoundAndNotCalledAgain) {
    const Faulthandler installed;
    static std::atomic<int> calls{0};
    static std::atomic<bool> locked{true};
    RankInquiry asked = inquiry([] {
        ++calls;
        locked.wait(true);
        return std::string("late");
    });
    const auto start = Clock::now();
    asked.begin(1, true, start);
    ASSERT_FALSE(asked.look(start)) << "nobody can have answered";
    EXPECT_EQ(asked.look(start + 1h)->collectives, "");
    asked.begin(2, false, start);
    EXPECT_EQ(asked.look(start), std::nullopt);
    locked = false;
    locked.notify_all();
    EXPECT_EQ(answer_of(asked).collectives, "late");
    EXPECT_EQ(calls, 1);
}

TEST(RankInquiry, SaysThatTheMainThreadIsMute) {
    struct sigaction deaf {};
    deaf.sa_handler = SIG_IGN;
    ::sigaction(Faulthandler::number(), &deaf, nullptr);
    RankInquiry asked = inquiry([] { return std::string("[]"); });
    const auto start = Clock::now();
    asked.begin(1, true, start);
    EXPECT_EQ(asked.look(start), std::nullopt);
    const auto answer = asked.look(start + 1h);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->stack.rfind("no answer from the main thread\n", 0), 0U);
}

}  // namespace
}  // namespace sgpu
