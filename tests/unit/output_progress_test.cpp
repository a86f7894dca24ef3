// Progress lines: they stay out of the text until they are final.
#include <gtest/gtest.h>

#include "tests/unit/mux_support.h"

namespace sgpu {
namespace {

std::string bar(int percent) {
    return "\r" + std::to_string(percent) + "%|##  |";
}

TEST(ProgressLine, IsLiveUntilItsLineEnd) {
    OutputMux mux({.world = 2});
    for (int percent = 0; percent <= 100; percent += 10) {
        add_to_all(mux, 2, bar(percent), kStart);
        EXPECT_EQ(show(mux.take(kStart + 1s)), "");
        EXPECT_EQ(show(mux.live()), "[0-1] " + std::to_string(percent) + "%|##  |");
    }
    add_to_all(mux, 2, "\n", kStart + 1s);
    EXPECT_EQ(show(mux.take(kStart + 1050ms)), "[0-1] 100%|##  |\n");
    EXPECT_EQ(show(mux.live()), "");
    EXPECT_EQ(show(mux.flush()), "");
}

TEST(ProgressLine, ShowsOneStatePerRankThatIsElsewhere) {
    OutputMux mux({.world = 3});
    mux.add(0, Stream::err, bar(10), kStart);
    mux.add(1, Stream::err, bar(20), kStart);
    mux.add(2, Stream::err, bar(10), kStart);
    EXPECT_EQ(show(mux.live()), "[0,2] 10%|##  ||[1] 20%|##  |");
    EXPECT_EQ(show(mux.flush()), "{[0,2] 10%|##  |\n[1] 20%|##  |\n}");
}

TEST(ProgressLine, WrittenWithTheReturnAtItsEndIsLiveToo) {
    OutputMux mux({.world = 2});
    for (int step = 0; step < 200; ++step)
        add_to_all(mux, 2, "step " + std::to_string(step) + "\r", kStart);
    EXPECT_EQ(show(mux.take(kStart + 1s)), "");
    EXPECT_EQ(show(mux.live()), "[0-1] step 199");
    EXPECT_EQ(show(mux.flush()), "[0-1] step 199\n");
}

TEST(ProgressLine, CaseOfTwoHundredReturnsEndsInOneLineAndDone) {
    OutputMux mux({.world = 3});
    for (int i = 0; i < 200; ++i)
        for (Rank rank = 0; rank < 3; ++rank)
            mux.add(rank, Stream::out,
                    "\r<" + std::to_string(rank) + "> " + std::to_string(i) + "/200", kStart);
    add_to_all(mux, 3, "\ndone\n", kStart);
    EXPECT_EQ(show(mux.flush()), "[0] <0> 199/200\n[1] <1> 199/200\n[2] <2> 199/200\n[0-2] done\n");
}

TEST(ProgressLine, AReturnBeforeALineEndIsPartOfTheLineEnd) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, "dos\r\nnext\r", kStart);
    mux.add(0, Stream::out, "\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "dos\nnext\n");
}

TEST(ProgressLine, ThatWasBlankedLeavesNothing) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::err, bar(50) + "\r          \r", kStart);
    EXPECT_EQ(show(mux.live()), "");
    mux.add(0, Stream::err, "message\n", kStart);
    EXPECT_EQ(show(mux.flush()), "{message\n}");
}

TEST(ProgressLine, ErasedByATerminalSequenceLeavesNothing) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::err, bar(50) + "\r\x1b[K" + "tail" + "\x1b[2K\r", kStart);
    EXPECT_EQ(show(mux.flush()), "");
}

TEST(ProgressLine, AnEraseBehindTheTextLeavesTheText) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, "\x1b[01m\x1b[Kwarning\x1b[m\x1b[K\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "\x1b[01mwarning\x1b[m\n");
}

TEST(ProgressLine, ABackspaceReplacesTheCharacterBefore) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, "work |\b/\b-\bé\b\b", kStart);
    EXPECT_EQ(show(mux.live()), "[0] work é");
    mux.add(0, Stream::out, "!\n", kStart);
    EXPECT_EQ(show(mux.flush()), "work!\n");
}

TEST(ProgressLine, MoreBackspacesThanCharactersAreHarmless) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, "ab\b\b\b\bc\n", kStart);
    EXPECT_EQ(show(mux.flush()), "c\n");
}

TEST(ProgressLine, StaysLiveAcrossARichDisplay) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::err, bar(10), kStart);
    mux.add_display(0, "display_data", "figure", kStart);
    EXPECT_EQ(show(mux.take(kStart + 50ms)), "<0 figure>");
    EXPECT_EQ(show(mux.live()), "[0] 10%|##  |");
}

TEST(ProgressLine, IsFinalWhenItsRankEnds) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::err, bar(10), kStart);
    mux.rank_ended(0);
    EXPECT_EQ(show(mux.live()), "");
    EXPECT_EQ(show(mux.take(kStart + 50ms)), "{[0] 10%|##  |\n}");
}

TEST(ProgressLine, ThatEndedComesBeforeWhatItsRankWritesNext) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::err, bar(100) + "\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "") << "the cursor may still move up into it";
    EXPECT_EQ(mux.next_due(), kStart + 50ms);
    mux.add(0, Stream::out, "done\n", kStart + 1ms);
    EXPECT_EQ(show(mux.take(kStart + 1ms)), "{100%|##  |\n}done\n");
}

// What tqdm writes for a bar in place 1: one line down, the bar, one line up.
std::string inner_bar(int percent) {
    return "\n\rinner " + std::to_string(percent) + "%\x1b[A";
}

TEST(ProgressLine, NestedBarsKeepOneRowEach) {
    OutputMux mux({.world = 1});
    TimePoint now = kStart;
    for (int outer = 0; outer < 3; ++outer) {
        mux.add(0, Stream::err, "\router " + std::to_string(outer), now);
        for (int percent = 0; percent <= 100; percent += 50) {
            mux.add(0, Stream::err, inner_bar(percent), now);
            EXPECT_EQ(show(mux.take(now)), "");
            now += 1s;
        }
    }
    EXPECT_EQ(show(mux.live()), "[0] outer 2|[0] inner 100%");
    mux.add(0, Stream::err, "\router 3\n", now);
    EXPECT_EQ(show(mux.flush()), "{outer 3\ninner 100%\n}");
}

TEST(ProgressLine, AnInnerBarThatIsClearedLeavesNoRow) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::err, "\router 1", kStart);
    mux.add(0, Stream::err, inner_bar(50), kStart);
    mux.add(0, Stream::err, "\n\r         \r\x1b[A", kStart);
    mux.add(0, Stream::err, "\router 2\nfinished\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "{outer 2\nfinished\n}");
}

TEST(ProgressLine, ManyEndedOnesAreNotAllKept) {
    OutputMux mux({.world = 1});
    std::string expected;
    for (int i = 0; i < 1000; ++i) {
        mux.add(0, Stream::out, "\rbar " + std::to_string(i) + "\n", kStart);
        expected += "bar " + std::to_string(i) + "\n";
    }
    EXPECT_LE(mux.live().size(), 32U);
    EXPECT_EQ(show(mux.flush()), expected);
}

TEST(ProgressLine, InModeAllIsShownForEachRank) {
    OutputMux mux({.world = 2, .mode = OutputMux::Mode::all});
    add_to_all(mux, 2, "\r10%", kStart);
    EXPECT_EQ(show(mux.live()), "[0] 10%|[1] 10%");
}

}  // namespace
}  // namespace sgpu
