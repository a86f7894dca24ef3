#include "runtime/call.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace sgpu {
namespace {

using namespace std::chrono_literals;
using Kind = Order::Kind;
using Orders = std::vector<Order>;

constexpr Clock::time_point kStart{};

CallLimits limits() {
    return {.failure_grace = 5000ms,
            .stuck = 1000ms,
            .stop_grace = 5000ms,
            .kill_grace = 3000ms,
            .give_up = 6000ms,
            .timeout = std::nullopt};
}

Orders to_all(Kind kind, std::size_t ranks) {
    Orders orders;
    for (std::size_t i = 0; i < ranks; ++i) orders.push_back({kind, i});
    return orders;
}

// A call of two ranks that has come to `pressure` by Stop; `now` is when.
struct Pressed {
    Call call{2, limits(), kStart};
    Clock::time_point now = kStart;
};

Pressed pressed(Pressure pressure) {
    Pressed p;
    if (pressure == Pressure::none) return p;
    p.call.stop(p.now);
    (void)p.call.advance(p.now);
    while (p.call.pressure() != pressure && p.call.next_due()) {
        p.now = *p.call.next_due();
        (void)p.call.advance(p.now);
    }
    return p;
}

constexpr Pressure kPressures[] = {Pressure::none, Pressure::asked, Pressure::cut_if_stuck,
                                   Pressure::cut, Pressure::killed};

// Ranks say when they raised. What is heard of late is not taken for our doing.
TEST(Call, WhatWasRaisedBeforeWePressedIsNoConsequenceHoweverLateItIsHeardOf) {
    Call call(2, limits(), kStart);
    const auto stopped = kStart + 1s;
    call.stop(stopped);
    (void)call.advance(stopped);
    call.ended(0, RankState::raised, stopped + 20ms, stopped - 1ms);
    call.ended(1, RankState::raised, stopped + 20ms, stopped + 1ms);
    EXPECT_FALSE(call.ranks()[0].consequence);
    EXPECT_TRUE(call.ranks()[1].consequence);
}

TEST(Call, ATimeThatCannotBeIsBroughtIntoTheCall) {
    Call call(2, limits(), kStart + 1s);
    call.ended(0, RankState::raised, kStart + 2s, kStart);
    call.ended(1, RankState::raised, kStart + 2s, kStart + 1h);
    EXPECT_EQ(call.ranks()[0].at, kStart + 1s);
    EXPECT_EQ(call.ranks()[1].at, kStart + 2s);
}

TEST(Call, TheGraceAfterAFailureCanBeCutShort) {
    Call call(3, limits(), kStart);
    call.ended(0, RankState::raised, kStart);
    call.cut_short(kStart + 1s);
    EXPECT_EQ(call.advance(kStart + 1s), (Orders{{Kind::cut, 1}, {Kind::cut, 2}}));
    EXPECT_EQ(call.pressure(), Pressure::cut);
}

TEST(Call, ThereIsNothingToCutShortWithoutAFailureOrOnceRanksArePressed) {
    Call sound(2, limits(), kStart);
    sound.cut_short(kStart);
    EXPECT_TRUE(sound.advance(kStart).empty());
    for (const Pressure pressure : kPressures) {
        Pressed p = pressed(pressure);
        const auto due = p.call.next_due();
        p.call.cut_short(p.now);
        EXPECT_EQ(p.call.next_due(), due);
    }
}

TEST(Call, RunsUntilAllRanksHaveEnded) {
    Call call(2, limits(), kStart);
    EXPECT_FALSE(call.finished());
    call.ended(0, RankState::returned, kStart + 1ms);
    EXPECT_FALSE(call.finished());
    call.ended(1, RankState::returned, kStart + 2ms);
    EXPECT_TRUE(call.finished());
    EXPECT_EQ(call.cause(), EndCause::none);
    EXPECT_EQ(call.next_due(), std::nullopt);
    EXPECT_EQ(call.advance(kStart + 1h), Orders{});
    EXPECT_EQ(call.ranks()[1].at, kStart + 2ms);
}

TEST(Call, ACallOfNobodyIsOver) {
    EXPECT_TRUE(Call(0, limits(), kStart).finished());
}

TEST(Call, NothingIsDueWhileAllIsWell) {
    Call call(2, limits(), kStart);
    EXPECT_EQ(call.next_due(), std::nullopt);
    EXPECT_EQ(call.advance(kStart + 24h), Orders{});
}

// Every state of a rank x every report: the first end is kept.
TEST(Call, TheFirstEndOfARankIsKept) {
    for (const auto first : {RankState::returned, RankState::raised, RankState::died})
        for (const auto second :
             {RankState::running, RankState::returned, RankState::raised, RankState::died}) {
            Call call(1, limits(), kStart);
            call.ended(0, first, kStart + 1ms);
            call.ended(0, second, kStart + 2ms);
            EXPECT_EQ(call.ranks()[0].state, first);
            EXPECT_EQ(call.ranks()[0].at, kStart + 1ms);
        }
    Call call(1, limits(), kStart);
    call.ended(0, RankState::running, kStart);
    EXPECT_EQ(call.ranks()[0].state, RankState::running);
}

TEST(Call, StopClimbsTheLadderStepByStep) {
    Call call(2, limits(), kStart);
    call.stop(kStart);
    EXPECT_EQ(call.cause(), EndCause::stop);
    struct Step {
        std::chrono::milliseconds at;
        Pressure pressure;
        Kind order;
    };
    const Step steps[] = {{0ms, Pressure::asked, Kind::interrupt},
                          {1000ms, Pressure::cut_if_stuck, Kind::cut_if_stuck},
                          {5000ms, Pressure::cut, Kind::cut},
                          {8000ms, Pressure::killed, Kind::kill}};
    for (const Step& step : steps) {
        EXPECT_EQ(call.next_due(), kStart + step.at);
        if (step.at > 0ms) {
            EXPECT_EQ(call.advance(kStart + step.at - 1ms), Orders{});
        }
        EXPECT_EQ(call.advance(kStart + step.at), to_all(step.order, 2)) << step.at.count();
        EXPECT_EQ(call.pressure(), step.pressure);
        EXPECT_FALSE(call.finished());
    }
}

TEST(Call, WhatIsNotEndedByTheSystemIsGivenUp) {
    auto [call, now] = pressed(Pressure::killed);
    call.ended(0, RankState::died, now + 1ms);
    EXPECT_EQ(call.advance(now + 6000ms - 1ms), Orders{});
    EXPECT_FALSE(call.finished());
    EXPECT_EQ(call.advance(now + 6000ms), Orders{});
    EXPECT_TRUE(call.finished());
    EXPECT_EQ(call.pressure(), Pressure::given_up);
    EXPECT_EQ(call.ranks()[1].state, RankState::died);
    EXPECT_EQ(call.ranks()[1].at, now + 6000ms);
}

TEST(Call, ASecondStopTakesTheNextStepAtOnceButNeverGivesUp) {
    const Kind next[] = {Kind::interrupt, Kind::cut_if_stuck, Kind::cut, Kind::kill};
    for (std::size_t i = 0; i < std::size(next); ++i) {
        auto [call, now] = pressed(kPressures[i]);
        call.stop(now);
        EXPECT_EQ(call.advance(now), to_all(next[i], 2)) << i;
    }
    auto [call, now] = pressed(Pressure::killed);
    call.stop(now);
    EXPECT_EQ(call.advance(now), Orders{});
    EXPECT_FALSE(call.finished());
}

TEST(Call, OnlyRunningRanksGetOrders) {
    Call call(3, limits(), kStart);
    call.ended(1, RankState::returned, kStart);
    call.stop(kStart);
    EXPECT_EQ(call.advance(kStart), (Orders{{Kind::interrupt, 0}, {Kind::interrupt, 2}}));
    call.ended(0, RankState::raised, kStart + 1ms);
    EXPECT_EQ(call.advance(kStart + 1000ms), (Orders{{Kind::cut_if_stuck, 2}}));
}

TEST(Call, AStepThatIsLateIsFollowedByItsSuccessorsInOrder) {
    Call call(1, limits(), kStart);
    call.stop(kStart);
    EXPECT_EQ(call.advance(kStart + 1h), to_all(Kind::interrupt, 1));
    EXPECT_EQ(call.next_due(), kStart + 1h + 1000ms) << "each step has its own time";
}

TEST(Call, AFailureGivesTheOthersTheirGraceAndThenCuts) {
    for (const auto how : {RankState::raised, RankState::died}) {
        Call call(3, limits(), kStart);
        call.ended(1, how, kStart + 10ms);
        EXPECT_EQ(call.cause(), EndCause::failure);
        EXPECT_EQ(call.pressure(), Pressure::none);
        EXPECT_EQ(call.advance(kStart + 5009ms), Orders{});
        call.ended(0, RankState::raised, kStart + 5009ms);
        EXPECT_FALSE(call.ranks()[0].consequence) << "it ended by itself";
        EXPECT_EQ(call.advance(kStart + 5010ms), (Orders{{Kind::cut, 2}}));
        EXPECT_EQ(call.advance(kStart + 8010ms), (Orders{{Kind::kill, 2}}));
    }
}

TEST(Call, ASecondFailureDoesNotLengthenTheGrace) {
    Call call(3, limits(), kStart);
    call.ended(0, RankState::raised, kStart);
    call.ended(1, RankState::died, kStart + 4s);
    EXPECT_EQ(call.next_due(), kStart + 5s);
}

TEST(Call, AStopDuringTheGraceOfAFailureInterruptsAtOnceAndTheFailureStaysTheCause) {
    Call call(2, limits(), kStart);
    call.ended(0, RankState::raised, kStart);
    call.stop(kStart + 1s);
    EXPECT_EQ(call.advance(kStart + 1s), (Orders{{Kind::interrupt, 1}}));
    EXPECT_EQ(call.cause(), EndCause::failure);
    EXPECT_EQ(call.advance(kStart + 2s), (Orders{{Kind::cut_if_stuck, 1}}));
}

TEST(Call, TheDeadlineTakesTheStacksFirstAndThenStops) {
    CallLimits with_timeout = limits();
    with_timeout.timeout = 60s;
    Call call(2, with_timeout, kStart);
    call.ended(0, RankState::returned, kStart + 1s);
    EXPECT_EQ(call.next_due(), kStart + 60s);
    EXPECT_EQ(call.advance(kStart + 60s - 1ms), Orders{});
    EXPECT_EQ(call.advance(kStart + 60s), (Orders{{Kind::dump, 1}, {Kind::interrupt, 1}}));
    EXPECT_EQ(call.cause(), EndCause::deadline);
    EXPECT_EQ(call.next_due(), kStart + 61s);
    EXPECT_EQ(call.advance(kStart + 61s), (Orders{{Kind::cut_if_stuck, 1}}));
}

TEST(Call, ADeadlineThatComesDuringAnotherEndChangesNothing) {
    CallLimits with_timeout = limits();
    with_timeout.timeout = 2s;
    Call stopped(1, with_timeout, kStart);
    stopped.stop(kStart + 1s);
    (void)stopped.advance(kStart + 1s);
    EXPECT_EQ(stopped.advance(kStart + 2s), (Orders{{Kind::cut_if_stuck, 0}}));
    EXPECT_EQ(stopped.cause(), EndCause::stop);

    Call failed(2, with_timeout, kStart);
    failed.ended(0, RankState::died, kStart);
    EXPECT_EQ(failed.advance(kStart + 2s), Orders{});
    EXPECT_EQ(failed.cause(), EndCause::failure);
    EXPECT_EQ(failed.next_due(), kStart + 5s);
}

// Every pressure x every end: what is a consequence, and which cause wins.
TEST(Call, WhatEndsAfterWeBeganToEndItIsAConsequenceUnlessItReturned) {
    for (const Pressure pressure : kPressures)
        for (const auto how : {RankState::returned, RankState::raised, RankState::died}) {
            auto [call, now] = pressed(pressure);
            call.ended(0, how, now);
            const bool began = pressure != Pressure::none;
            EXPECT_EQ(call.ranks()[0].consequence, began && how != RankState::returned);
            const EndCause first = began                        ? EndCause::stop
                                   : how == RankState::returned ? EndCause::none
                                                                : EndCause::failure;
            EXPECT_EQ(call.cause(), first);
        }
}

TEST(Call, AStopAfterTheEndDoesNothing) {
    Call call(1, limits(), kStart);
    call.ended(0, RankState::returned, kStart);
    call.stop(kStart + 1s);
    EXPECT_EQ(call.cause(), EndCause::none);
    EXPECT_EQ(call.advance(kStart + 1h), Orders{});
}

TEST(Call, AGraceShorterThanTheTimeToBeStuckCutsAfterThatTime) {
    CallLimits short_grace = limits();
    short_grace.stop_grace = 100ms;
    Call call(1, short_grace, kStart);
    call.stop(kStart);
    (void)call.advance(kStart);
    EXPECT_EQ(call.advance(kStart + 1s), (Orders{{Kind::cut_if_stuck, 0}, {Kind::cut, 0}}));
    EXPECT_EQ(call.next_due(), kStart + 4s);
}

}  // namespace
}  // namespace sgpu
