// The rules by which lines of several ranks become one text. Partial lines, progress lines and
// floods have files of their own.
#include "runtime/output_mux.h"

#include <gtest/gtest.h>

#include "tests/unit/mux_support.h"

namespace sgpu {
namespace {

TEST(OutputMux, MergesEqualLinesUnderTheRanksThatPrintedThem) {
    OutputMux mux({.world = 4});
    for (const Rank rank : {2, 0, 1}) mux.add(rank, Stream::out, "loss 0.5\n", kStart);
    mux.add(3, Stream::out, "loss 0.7\n", kStart);
    EXPECT_EQ(show(mux.flush()), "[0-2] loss 0.5\n[3] loss 0.7\n");
}

TEST(OutputMux, AWorldOfOneHasNoPrefix) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, "a\n\nb\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "a\n\nb\n");
}

TEST(OutputMux, ALineThatAllRanksReachedGoesOutAtOnce) {
    OutputMux mux({.world = 8});
    add_to_all(mux, 7, "epoch 1\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "");
    mux.add(7, Stream::out, "epoch 1\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "[0-7] epoch 1\n");
}

TEST(OutputMux, DifferentLinesOfAllRanksGoOutAtOnceInRankOrder) {
    OutputMux mux({.world = 4});
    for (const Rank rank : {2, 0, 3, 1})
        mux.add(rank, Stream::out, "loss of " + std::to_string(rank) + "\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)),
              "[0] loss of 0\n[1] loss of 1\n[2] loss of 2\n[3] loss of 3\n");
}

TEST(OutputMux, LinesOfOnePlaceStandTogetherThoughARankIsAhead) {
    OutputMux mux({.world = 3, .window = 50ms});
    mux.add(2, Stream::out, "c1\nc2\n", kStart);
    mux.add(0, Stream::out, "a1\na2\n", kStart + 10ms);
    mux.add(1, Stream::out, "b1\nb2\n", kStart + 20ms);
    EXPECT_EQ(show(mux.flush()), "[0] a1\n[1] b1\n[2] c1\n[0] a2\n[1] b2\n[2] c2\n");
}

TEST(OutputMux, ARankThatWasSilentComesInWhereTheOthersAre) {
    OutputMux mux({.world = 2, .window = 50ms});
    for (int i = 0; i < 100; ++i) mux.add(1, Stream::out, "x\n", kStart);
    EXPECT_EQ(show(mux.take(kStart + 50ms)).size(), 100U * 6U);
    mux.add(1, Stream::out, "y1\ny2\n", kStart + 60ms);
    mux.add(0, Stream::out, "a1\na2\na3\na4\n", kStart + 70ms);
    EXPECT_EQ(show(mux.flush()), "[0] a1\n[0] a2\n[1] y1\n[0] a3\n[1] y2\n[0] a4\n");
}

TEST(OutputMux, ALineOfMostRanksWaitsForOneThatHasALineBeforeIt) {
    OutputMux mux({.world = 4, .window = 50ms});
    mux.add(2, Stream::out, "careful\n", kStart);
    for (const Rank rank : {0, 1, 3}) mux.add(rank, Stream::out, "epoch 1\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "[2] careful\n");
    mux.add(2, Stream::out, "epoch 1\n", kStart + 10ms);
    EXPECT_EQ(show(mux.take(kStart + 10ms)), "[0-3] epoch 1\n");
}

TEST(OutputMux, ALineThatOthersCouldJoinWaitsForTheWindow) {
    OutputMux mux({.world = 2, .window = 50ms});
    mux.add(0, Stream::out, "only here\n", kStart);
    EXPECT_EQ(mux.next_due(), kStart + 50ms);
    EXPECT_EQ(show(mux.take(kStart + 49ms)), "");
    EXPECT_EQ(show(mux.take(kStart + 50ms)), "[0] only here\n");
    EXPECT_EQ(mux.next_due(), std::nullopt);
}

TEST(OutputMux, TheWindowCountsFromTheFirstRankThatPrintedTheLine) {
    OutputMux mux({.world = 3, .window = 50ms});
    mux.add(1, Stream::out, "x\n", kStart);
    mux.add(0, Stream::out, "x\n", kStart + 40ms);
    EXPECT_EQ(show(mux.take(kStart + 50ms)), "[0-1] x\n");
    mux.add(2, Stream::out, "x\n", kStart + 60ms);
    EXPECT_EQ(show(mux.take(kStart + 110ms)), "[2] x\n");
}

TEST(OutputMux, NextDueIsAtOnceWhenALineCanGo) {
    OutputMux mux({.world = 1});
    EXPECT_EQ(mux.next_due(), std::nullopt);
    mux.add(0, Stream::out, "x\n", kStart);
    EXPECT_EQ(mux.next_due(), kStart);
}

TEST(OutputMux, KeepsTheOrderOfStdoutAgainstStderr) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::out, "1\n", kStart);
    mux.add(0, Stream::err, "2\n", kStart);
    mux.add(0, Stream::out, "3\n", kStart);
    mux.add(1, Stream::err, "2\n", kStart);
    EXPECT_EQ(show(mux.flush()), "[0] 1\n{[0-1] 2\n}[0] 3\n");
}

TEST(OutputMux, TheSameTextOnAnotherStreamIsAnotherLine) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::out, "x\n", kStart);
    mux.add(1, Stream::err, "x\n", kStart);
    EXPECT_EQ(show(mux.flush()), "[0] x\n{[1] x\n}");
}

TEST(OutputMux, JoinsAdjacentLinesOfAStreamInOneChunk) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, "a\nb\n", kStart);
    mux.add(0, Stream::err, "c\n", kStart);
    const std::vector<Chunk> expected = {{Stream::out, "a\nb\n"}, {Stream::err, "c\n"}};
    EXPECT_EQ(mux.take(kStart), expected);
}

TEST(OutputMux, ARankThatPrintsOneMoreLineDoesNotSplitTheOthers) {
    OutputMux mux({.world = 4});
    add_to_all(mux, 4, "epoch 1\n", kStart);
    mux.add(1, Stream::out, "epoch 2\n", kStart);
    mux.add(2, Stream::out, "epoch 2\n", kStart);
    mux.add(0, Stream::out, "saved\nepoch 2\n", kStart);
    mux.add(3, Stream::out, "epoch 2\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "[0-3] epoch 1\n[0] saved\n[0-3] epoch 2\n");
}

TEST(OutputMux, RanksThatWaitForEachOthersLinesEndInTheOlderOne) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::out, "a\nb\n", kStart);
    mux.add(1, Stream::out, "b\na\n", kStart);
    EXPECT_EQ(show(mux.flush()), "[0] a\n[0-1] b\n[1] a\n");
}

TEST(OutputMux, ALineIsAsOldAsTheFirstRankThatPrintedIt) {
    OutputMux mux({.world = 3, .window = 50ms});
    mux.add(0, Stream::out, "a\nx\n", kStart);
    mux.add(2, Stream::out, "c\n", kStart + 1ms);
    mux.add(1, Stream::out, "x\n", kStart + 40ms);
    EXPECT_EQ(show(mux.flush()), "[0] a\n[0-1] x\n[2] c\n");
    mux.add(0, Stream::out, "b\ny\n", kStart + 100ms);
    mux.add(1, Stream::out, "y\n", kStart + 140ms);
    EXPECT_EQ(show(mux.take(kStart + 150ms)), "[0] b\n[0-1] y\n");
}

TEST(OutputMux, EqualLinesThatARankRepeatsAreShownAsOften) {
    OutputMux mux({.world = 2});
    add_to_all(mux, 2, "x\nx\nx\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "[0-1] x\n[0-1] x\n[0-1] x\n");
}

TEST(OutputMux, NobodyWaitsForARankThatEnded) {
    OutputMux mux({.world = 3});
    mux.rank_ended(2);
    mux.rank_ended(2);
    mux.add(0, Stream::out, "x\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "");
    mux.add(1, Stream::out, "x\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "[0-1] x\n");
}

TEST(OutputMux, WhatARankLeftIsWholeWhenItEnds) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::out, "bye", kStart);
    mux.add(1, Stream::out, "bye\n", kStart);
    mux.rank_ended(0);
    EXPECT_EQ(show(mux.take(kStart)), "[0-1] bye\n");
    mux.add(1, Stream::out, "alone\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "[1] alone\n");
}

TEST(OutputMux, ADisplayHasItsPlaceBetweenTheLines) {
    OutputMux mux({.world = 2});
    for (const Rank rank : {0, 1}) {
        mux.add(rank, Stream::out, "before\n", kStart);
        mux.add_display(rank, "display_data", "figure of " + std::to_string(rank), kStart);
        mux.add(rank, Stream::out, "after\n", kStart);
    }
    EXPECT_EQ(show(mux.take(kStart)), "[0-1] before\n<0 figure of 0><1 figure of 1>[0-1] after\n");
}

TEST(OutputMux, EqualDisplaysAreOne) {
    OutputMux mux({.world = 3, .window = 50ms});
    for (const Rank rank : {2, 0}) mux.add_display(rank, "display_data", "table", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "") << "rank 1 may come";
    mux.add_display(1, "update_display_data", "table", kStart);
    EXPECT_EQ(show(mux.flush()), "<0,2 table><1 table>") << "another type is another display";
}

TEST(OutputMux, ALineIsNotMergedWithADisplayOfTheSameText) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::out, "x\n", kStart);
    mux.add_display(1, "display_data", "x", kStart);
    EXPECT_EQ(show(mux.flush()), "[0] x\n<1 x>");
}

TEST(OutputMux, ModeAllNeverMergesAndKeepsTheOrderOfArrival) {
    OutputMux mux({.world = 3, .mode = OutputMux::Mode::all});
    for (const Rank rank : {2, 0, 1, 2}) mux.add(rank, Stream::out, "x\n", kStart);
    EXPECT_EQ(mux.next_due(), kStart);
    EXPECT_EQ(show(mux.take(kStart)), "[2] x\n[0] x\n[1] x\n[2] x\n");
}

TEST(OutputMux, LinesOfRanksOutsideShowAreCountedOnly) {
    OutputMux mux({.world = 4, .show = RankSet{1, 2, 9}});
    add_to_all(mux, 4, "x\ny\n", kStart);
    mux.rank_ended(0);
    EXPECT_EQ(show(mux.take(kStart)), "[1-2] x\n[1-2] y\n");
    mux.add_display(3, "display_data", "figure", kStart);
    EXPECT_EQ(show(mux.flush()), "");
    EXPECT_EQ(mux.hidden_lines(), 4U);
}

TEST(OutputMux, AnEmptyShowShowsNothing) {
    OutputMux mux({.world = 2, .show = RankSet{}});
    add_to_all(mux, 2, "x\n", kStart);
    EXPECT_EQ(mux.next_due(), std::nullopt);
    EXPECT_EQ(show(mux.flush()), "");
    EXPECT_EQ(mux.hidden_lines(), 2U);
}

TEST(OutputMux, PrefixesAreDimIfColourIsOn) {
    OutputMux mux({.world = 2, .colour = true});
    add_to_all(mux, 2, "x\n\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "\x1b[38;5;244m[0-1]\x1b[0m x\n\x1b[38;5;244m[0-1]\x1b[0m\n");
}

TEST(OutputMux, AColourLeftOpenEndsWithItsLine) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, "\x1b[31mred\n\x1b[31mred\x1b[0m\nplain\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "\x1b[31mred\x1b[0m\n\x1b[31mred\x1b[0m\nplain\n");
}

TEST(OutputMux, MergesSixteenRanks) {
    OutputMux mux({.world = 16});
    add_to_all(mux, 16, "start\n", kStart);
    for (Rank rank = 0; rank < 16; ++rank)
        mux.add(rank, Stream::out, rank % 2 == 0 ? "even\nend\n" : "odd\nend\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)),
              "[0-15] start\n[0,2,4,6,8,10,12,14] even\n[1,3,5,7,9,11,13,15] odd\n[0-15] end\n");
}

// A quiet rank must not let the others' lines fill the memory within one window.
TEST(OutputMux, ShowsTheOldestLinesBeforeTheQueuesGrowTooLarge) {
    OutputMux mux({.world = 2, .max_queued = 10'000});
    mux.add(0, Stream::out, std::string(6'000, 'x') + "\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "");
    mux.add(0, Stream::out, std::string(6'000, 'y') + "\n", kStart);
    EXPECT_EQ(mux.next_due(), kStart);
    EXPECT_EQ(show(mux.take(kStart)), "[0] " + std::string(6'000, 'x') + "\n");
}

TEST(OutputMux, LinesAfterFlushAreTakenAsBefore) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::out, "begun", kStart);
    EXPECT_EQ(show(mux.flush()), "[0] begun\n");
    mux.add(0, Stream::out, "\nlate\n", kStart);
    EXPECT_EQ(show(mux.flush()), "[0] late\n");
    EXPECT_EQ(show(mux.flush()), "");
}

}  // namespace
}  // namespace sgpu
