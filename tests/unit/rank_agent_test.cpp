#include "runtime/rank_agent.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>
#include <csignal>
#include <string>

#include "runtime/packet_socket.h"

namespace sgpu {
namespace {

constexpr int kBoundMs = 30'000;

// An agent in this process, and the pool's end of its channel.
class Agent : public testing::Test {
protected:
    void SetUp() override {
        std::signal(SIGINT, [](int) { interrupts = interrupts + 1; });
        interrupts = 0;
        auto pair = packet_pair();
        ASSERT_TRUE(pair);
        pool_ = std::move(pair.value().first);
        RankAgent::Options options;
        options.key = "key";
        options.socket = std::move(pair.value().second);
        options.service = "null";
        agent_.emplace(std::move(options));
        ASSERT_TRUE(std::holds_alternative<Hello>(next()));
    }
    void TearDown() override { std::signal(SIGINT, SIG_DFL); }

    Body next() const {
        pollfd item{pool_.get(), POLLIN, 0};
        int ready = -1;
        do {
            ready = ::poll(&item, 1, kBoundMs);
        } while (ready < 0 && errno == EINTR);  // the interrupt is this thread's
        EXPECT_EQ(ready, 1) << "the agent said nothing";
        auto packet = recv_packet(pool_.get());
        auto message = decode(packet ? packet->bytes : "");
        EXPECT_TRUE(message);
        return message ? std::move(message.value().body) : Body{};
    }
    // Returns when the agent has dealt with it: it answers in order.
    void tell(const Body& body) const {
        for (const Body& one : {body, Body{Ping{1}}})
            ASSERT_EQ(send_packet(pool_.get(), encode(one), {}, Wait::yes), Sent::yes);
        ASSERT_TRUE(std::holds_alternative<Pong>(next()));
    }

    static inline volatile std::sig_atomic_t interrupts = 0;
    UniqueFd pool_;
    std::optional<RankAgent> agent_;
};

TEST_F(Agent, InterruptsTheCallThatRuns) {
    agent_->begin_work(7, 2);
    tell(Interrupt{7, "deadline"});
    EXPECT_EQ(interrupts, 1);
    EXPECT_STREQ(agent_->see_interrupt(), "deadline");
}

// What waits in a system call although the signal has come: runtime/nudge.h.
TEST_F(Agent, AnInterruptThatIsNotSeenEndsTheSystemCall) {
    agent_->begin_work(7, 2);
    tell(Interrupt{7, "stop"});
    EXPECT_EQ(interrupts, 1);
    EXPECT_EQ(::poll(nullptr, 0, kBoundMs), -1) << "slept over";
    EXPECT_EQ(errno, EINTR);
    EXPECT_EQ(interrupts, 1);
}

TEST_F(Agent, AnInterruptBeforeItsCallHasBegunComesWithTheBegin) {
    tell(Interrupt{7, "stop"});
    EXPECT_EQ(interrupts, 0);
    agent_->begin_work(7, 2);
    EXPECT_EQ(interrupts, 1);
    EXPECT_STREQ(agent_->see_interrupt(), "stop");
}

TEST_F(Agent, AnInterruptOfAnotherCallIsForgotten) {
    tell(Interrupt{7, "stop"});
    agent_->begin_work(8, 2);
    tell(Interrupt{7, "stop"});
    agent_->end_work();
    tell(Interrupt{8, "stop"});
    agent_->begin_work(9, 2);
    EXPECT_EQ(interrupts, 0);
    EXPECT_STREQ(agent_->see_interrupt(), "");
}

}  // namespace
}  // namespace sgpu
