// Lines that have no end yet: shown after a while, completed in place if nothing came between.
#include <gtest/gtest.h>

#include "tests/unit/mux_support.h"

namespace sgpu {
namespace {

TEST(PartialLine, AppearsWhenItHasWaited) {
    OutputMux mux({.world = 1, .partial_wait = 200ms});
    mux.add(0, Stream::out, "loading ...", kStart);
    EXPECT_EQ(mux.next_due(), kStart + 200ms);
    EXPECT_EQ(show(mux.take(kStart + 199ms)), "");
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "loading ...");
    EXPECT_EQ(mux.next_due(), std::nullopt);
}

TEST(PartialLine, WaitsFromItsFirstCharacter) {
    OutputMux mux({.world = 1, .partial_wait = 200ms});
    mux.add(0, Stream::out, "a", kStart);
    mux.add(0, Stream::out, "b", kStart + 150ms);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "ab");
    mux.add(0, Stream::out, "c", kStart + 210ms);
    EXPECT_EQ(mux.next_due(), kStart + 410ms);
}

TEST(PartialLine, IsCompletedInPlace) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::out, "loading ...", kStart);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "[0] loading ...");
    mux.add(0, Stream::out, " 50%", kStart + 300ms);
    EXPECT_EQ(show(mux.take(kStart + 500ms)), " 50%");
    mux.add(0, Stream::out, " done\nnext\n", kStart + 600ms);
    EXPECT_EQ(show(mux.take(kStart + 650ms)), " done\n[0] next\n");
}

TEST(PartialLine, IsEndedWhenAnotherLineComesBetween) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::out, "loading ...", kStart);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "[0] loading ...");
    mux.add(1, Stream::out, "hello\n", kStart + 210ms);
    EXPECT_EQ(show(mux.take(kStart + 260ms)), "\n[1] hello\n");
    mux.add(0, Stream::out, " done\n", kStart + 300ms);
    EXPECT_EQ(show(mux.take(kStart + 350ms)), "[0]  done\n");
}

TEST(PartialLine, ThatWasEndedAlreadyNeedsNoSecondLineEnd) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::out, "loading ...", kStart);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "[0] loading ...");
    mux.add(1, Stream::out, "hello\n", kStart + 210ms);
    mux.add(0, Stream::out, "\nnext\n", kStart + 220ms);
    EXPECT_EQ(show(mux.flush()), "\n[1] hello\n[0] next\n");
}

TEST(PartialLine, OfSeveralRanksIsShownOnceAndCompletedOnce) {
    OutputMux mux({.world = 3});
    add_to_all(mux, 3, "loading ...", kStart);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "[0-2] loading ...");
    add_to_all(mux, 3, " done\n", kStart + 300ms);
    EXPECT_EQ(show(mux.take(kStart + 300ms)), " done\n");
}

TEST(PartialLine, OfSeveralRanksThatPartBecomesLinesOfEach) {
    OutputMux mux({.world = 2});
    add_to_all(mux, 2, "loss", kStart);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "[0-1] loss");
    mux.add(0, Stream::out, " 0.1\n", kStart + 300ms);
    mux.add(1, Stream::out, " 0.2\n", kStart + 300ms);
    EXPECT_EQ(show(mux.flush()), "\n[0]  0.1\n[1]  0.2\n");
}

TEST(PartialLine, IsEndedByTheOtherStreamToo) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, "loading ...", kStart);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "loading ...");
    mux.add(0, Stream::err, "warning\n", kStart + 210ms);
    mux.add(0, Stream::out, "done\n", kStart + 220ms);
    EXPECT_EQ(show(mux.take(kStart + 220ms)), "\n{warning\n}done\n");
}

TEST(PartialLine, ComesAfterTheLinesItsRankEndedBefore) {
    OutputMux mux({.world = 2, .window = 500ms, .partial_wait = 200ms});
    mux.add(0, Stream::out, "first\nsecond", kStart);
    EXPECT_EQ(show(mux.take(kStart + 300ms)), "");
    EXPECT_EQ(show(mux.take(kStart + 500ms)), "[0] first\n[0] second");
}

TEST(PartialLine, IsNotSharedByARankThatHasLinesBeforeIt) {
    OutputMux mux({.world = 2, .window = 50ms, .partial_wait = 200ms});
    mux.add(0, Stream::out, "x", kStart);
    mux.add(1, Stream::out, "first\nx", kStart + 190ms);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "[0] x");
    EXPECT_EQ(show(mux.take(kStart + 390ms)), "\n[1] first\n[1] x");
}

TEST(PartialLine, ItsRestDoesNotMergeWithAWholeLine) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::out, "a", kStart);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "[0] a");
    add_to_all(mux, 2, " b\n", kStart + 210ms);
    EXPECT_EQ(show(mux.take(kStart + 260ms)), " b\n[1]  b\n");
}

TEST(PartialLine, IsNotCompletedByTheRestOfALineOfTheOtherStream) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::err, std::string(65536, 'e') + "rest", kStart);
    mux.add_display(0, "display_data", "f", kStart);
    EXPECT_EQ(show(mux.take(kStart + 50ms)),
              "{[0] " + std::string(65536, 'e') + "\n[0] rest\n}<0 f>");
    mux.add(0, Stream::out, "begun", kStart);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "[0] begun");
    mux.add(0, Stream::err, "end\n", kStart + 200ms);
    EXPECT_EQ(show(mux.take(kStart + 250ms)), "\n{[0] end\n}");
}

TEST(PartialLine, ThatIsErasedStillHasItsLineEnd) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, "0%", kStart);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "0%");
    mux.add(0, Stream::out, "\x1b[2K\n", kStart + 200ms);
    EXPECT_EQ(show(mux.take(kStart + 250ms)), "\n");
}

TEST(PartialLine, IsWholeAtFlush) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::err, "to err", kStart);
    mux.add(0, Stream::out, "to out", kStart + 1ms);
    mux.add(1, Stream::out, "to out", kStart);
    EXPECT_EQ(show(mux.flush()), "{[0] to err\n}[0-1] to out\n");
}

TEST(PartialLine, ThatWasShownIsEndedAtFlush) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, "no newline", kStart);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "no newline");
    EXPECT_EQ(show(mux.flush()), "\n");
    EXPECT_EQ(show(mux.flush()), "");
}

TEST(PartialLine, IsEndedBeforeARichDisplay) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::out, "figure: ", kStart);
    mux.add_display(0, "display_data", "f", kStart);
    EXPECT_EQ(show(mux.take(kStart + 50ms)), "[0] figure: \n<0 f>");
    mux.add(0, Stream::out, "\nafter\n", kStart + 60ms);
    EXPECT_EQ(show(mux.take(kStart + 110ms)), "[0] after\n");
}

TEST(PartialLine, OfAnotherRankIsEndedBeforeARichDisplayToo) {
    OutputMux mux({.world = 2});
    mux.add(1, Stream::out, "loading", kStart);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "[1] loading");
    mux.add_display(0, "display_data", "f", kStart + 200ms);
    EXPECT_EQ(show(mux.take(kStart + 250ms)), "\n<0 f>");
}

TEST(PartialLine, WithAnOpenColourIsResetWhenItIsEnded) {
    OutputMux mux({.world = 2});
    mux.add(0, Stream::out, "\x1b[31mred", kStart);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "[0] \x1b[31mred");
    mux.add(1, Stream::out, "x\n", kStart + 200ms);
    EXPECT_EQ(show(mux.take(kStart + 250ms)), "\x1b[0m\n[1] x\n");
}

TEST(PartialLine, WithAnOpenColourIsResetWhenItIsCompleted) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, "\x1b[31mred", kStart);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "\x1b[31mred");
    mux.add(0, Stream::out, " end\n", kStart + 210ms);
    EXPECT_EQ(show(mux.take(kStart + 210ms)), " end\x1b[0m\n");
}

TEST(PartialLine, ThatBecomesAProgressLineLeavesWhatWasShown) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, "0%", kStart);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "0%");
    mux.add(0, Stream::out, "\r50%", kStart + 300ms);
    EXPECT_EQ(show(mux.take(kStart + 900ms)), "");
    EXPECT_EQ(show(mux.live()), "[0] 50%");
    mux.add(0, Stream::out, "\r100%\n", kStart + 900ms);
    EXPECT_EQ(show(mux.flush()), "\n100%\n");
}

TEST(PartialLine, InModeAllIsShownForEachRank) {
    OutputMux mux({.world = 2, .mode = OutputMux::Mode::all});
    add_to_all(mux, 2, "x", kStart);
    EXPECT_EQ(show(mux.take(kStart + 200ms)), "[0] x\n[1] x");
}

}  // namespace
}  // namespace sgpu
