// Bytes of any kind and any number: decoding, very long lines, floods.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/mux_support.h"

namespace sgpu {
namespace {

std::string text_of(std::string_view bytes) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, bytes, kStart);
    return show(mux.flush());
}

TEST(OutputBytes, WhatIsNoUtf8BecomesReplacementCharacters) {
    EXPECT_EQ(text_of("a\xff"
                      "b\n"),
              "a�b\n");
    EXPECT_EQ(text_of("\xc3(\n"), "�(\n");
    EXPECT_EQ(text_of("\xe2\x82\n"), "�\n");
    EXPECT_EQ(text_of("\xc0\xaf\n"), "��\n") << "an overlong slash";
    EXPECT_EQ(text_of("\xe0\x80\xaf\n"), "���\n") << "an overlong slash again";
    EXPECT_EQ(text_of("\xed\xa0\x80\n"), "���\n") << "half of a surrogate pair";
    EXPECT_EQ(text_of("\xf4\x90\x80\x80\n"), "����\n") << "beyond U+10FFFF";
}

TEST(OutputBytes, CharactersOfAnyLengthPass) {
    EXPECT_EQ(text_of("é € 😀 █\tx\n"), "é € 😀 █\tx\n");
}

TEST(OutputBytes, ACharacterCutBetweenTwoAddsIsWhole) {
    const std::string smile = "😀";
    for (std::size_t cut = 1; cut < smile.size(); ++cut) {
        OutputMux mux({.world = 1});
        mux.add(0, Stream::out, smile.substr(0, cut), kStart);
        EXPECT_EQ(show(mux.take(kStart + 1s)), "") << "half a character must not be shown";
        mux.add(0, Stream::out, smile.substr(cut) + "\n", kStart + 1s);
        EXPECT_EQ(show(mux.take(kStart + 1s)), smile + "\n");
    }
}

TEST(OutputBytes, ACharacterCutAtTheEndOfAllIsReplaced) {
    EXPECT_EQ(text_of("a\xf0\x9f"), "a�\n");
}

TEST(OutputBytes, ControlCharactersBecomeVisible) {
    EXPECT_EQ(text_of(std::string_view("a\0b\a\x7f\n", 6)), "a␀b␇␡\n");
}

TEST(OutputBytes, TerminalSequencesOtherThanColoursAreDropped) {
    EXPECT_EQ(text_of("\x1b[?25la\x1b[1;32mb\x1b[0m\x1b(Bc\x1b]8;;http://x\x1b\\d\x1b]0;t\ae\n"),
              "a\x1b[1;32mb\x1b[0mcde\n");
}

TEST(OutputBytes, ASequenceThatNeverEndsDoesNotSwallowTheOutput) {
    EXPECT_EQ(text_of("\x1b]0;title\nnext\n"), "␛]0;title\nnext\n");
    EXPECT_EQ(text_of("\x1b[12\nnext\n"), "␛[12\nnext\n");
    const std::string text = text_of("\x1b]" + std::string(100'000, 'x'));
    EXPECT_EQ(std::count(text.begin(), text.end(), 'x'), 100'000);
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, "\x1b]" + std::string(10'000, 'x'), kStart);
    EXPECT_NE(show(mux.take(kStart + 1s)), "") << "and does not hold it back either";
}

TEST(OutputBytes, AVeryLongLineIsCutBetweenCharacters) {
    const std::string text = text_of(std::string(65535, 'a') + "é" + std::string(10, 'b') + "\n");
    EXPECT_EQ(text, std::string(65535, 'a') + "\né" + std::string(10, 'b') + "\n");
}

TEST(OutputBytes, AVeryLongLineIsNotCutInsideAColour) {
    const std::string text = text_of(std::string(65534, 'a') + "\x1b[31mred\x1b[0m\n");
    EXPECT_EQ(text, std::string(65534, 'a') + "\n\x1b[31mred\x1b[0m\n");
}

TEST(OutputBytes, ALineOfTheGreatestLengthHasOneLineEnd) {
    const std::string line = std::string(65536, 'a') + "\n";
    EXPECT_EQ(text_of(line + "b\n"), line + "b\n");
}

TEST(OutputBytes, TenMegabytesWithoutALineEndLoseNothing) {
    OutputMux mux({.world = 2});
    const std::string piece(4096, 'x');
    std::size_t shown = 0;
    const auto count = [&shown](const std::vector<Chunk>& chunks) {
        const std::string text = show(chunks);
        shown += static_cast<std::size_t>(std::count(text.begin(), text.end(), 'x'));
    };
    TimePoint now = kStart;
    for (int i = 0; i < 2560; ++i, now += 1ms) {
        mux.add(1, Stream::out, piece, now);
        count(mux.take(now));
    }
    EXPECT_GT(shown, 2400U * 4096U) << "a long line is shown while it grows";
    count(mux.flush());
    EXPECT_EQ(shown, 2560U * 4096U);
}

std::string numbered(int from, int to) {
    std::string text;
    for (int i = from; i < to; ++i) text += "[0] line " + std::to_string(i) + "\n";
    return text;
}

TEST(OutputFlood, SaysHowMuchIsNotShownWhileItGoesOn) {
    OutputMux mux({.world = 2, .max_bytes = 1, .tail_lines = 3});
    mux.rank_ended(1);
    mux.add(0, Stream::out, "a\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "[0] a\n");
    EXPECT_EQ(mux.unshown(2).lines, 0U);
    mux.add(0, Stream::out, "b\nc\nd\ne\nf\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "");
    EXPECT_EQ(mux.unshown(2).lines, 5U);
    EXPECT_EQ(mux.unshown(2).newest, (std::vector<std::string>{"[0] e\n", "[0] f\n"}));
    EXPECT_NE(show(mux.flush()), "");
    EXPECT_EQ(mux.unshown(2).lines, 0U) << "the tail was shown";
}

TEST(OutputFlood, IsShownInPartAndItsTailAtTheEnd) {
    const std::string head = numbered(0, 50);
    OutputMux mux({.world = 2, .max_bytes = head.size(), .tail_lines = 20});
    mux.rank_ended(1);
    std::string seen;
    for (int i = 0; i < 5000; ++i) {
        mux.add(0, Stream::out, "line " + std::to_string(i) + "\n", kStart);
        seen += show(mux.take(kStart));
    }
    EXPECT_EQ(seen, head);
    EXPECT_EQ(
        show(mux.flush()),
        "… 4,930 lines not shown; all are in the log (%distributed logs)\n" + numbered(4980, 5000));
    EXPECT_EQ(mux.hidden_lines(), 4930U);
    EXPECT_EQ(show(mux.flush()), "");
}

TEST(OutputFlood, ThatFitsTheTailHasNoNote) {
    OutputMux mux({.world = 2, .max_bytes = 1, .tail_lines = 20});
    mux.rank_ended(1);
    for (int i = 0; i < 20; ++i)
        mux.add(0, Stream::out, "line " + std::to_string(i) + "\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), numbered(0, 1));
    EXPECT_EQ(show(mux.flush()), numbered(1, 20));
    EXPECT_EQ(mux.hidden_lines(), 0U);
}

TEST(OutputFlood, ThatGoesOnAfterFlushIsCountedFromThere) {
    OutputMux mux({.world = 2, .max_bytes = 0, .tail_lines = 1});
    mux.rank_ended(1);
    mux.add(0, Stream::out, "a\nb\nc\n", kStart);
    EXPECT_EQ(show(mux.flush()),
              "… 2 lines not shown; all are in the log (%distributed logs)\n[0] c\n");
    mux.add(0, Stream::out, "d\ne\n", kStart);
    EXPECT_EQ(show(mux.flush()),
              "… 1 lines not shown; all are in the log (%distributed logs)\n[0] e\n");
}

TEST(OutputFlood, EndsThePartialLineThatIsOpen) {
    OutputMux mux({.world = 1, .max_bytes = 10, .tail_lines = 5});
    mux.add(0, Stream::out, "0123456789", kStart);
    EXPECT_EQ(show(mux.take(kStart + 1s)), "0123456789");
    mux.add(0, Stream::out, "end\npartial", kStart + 1s);
    EXPECT_EQ(show(mux.take(kStart + 2s)), "end\n");
    EXPECT_EQ(mux.next_due(), std::nullopt) << "partial lines are not shown in a flood";
    EXPECT_EQ(show(mux.flush()), "partial\n");
}

TEST(OutputFlood, TheTailHasTheLastLinesOfEachRankThoughOneWroteMuchMoreAfterThem) {
    OutputMux mux({.world = 3, .max_bytes = 0, .tail_lines = 6});
    const auto write = [&mux](Rank rank, const std::string& name, int count) {
        for (int i = 0; i < count; ++i)
            mux.add(rank, Stream::out, name + std::to_string(i) + "\n", kStart);
        (void)mux.take(kStart + 1s);
    };
    write(2, "c", 3);
    write(1, "b", 100);
    write(0, "a", 1000);
    EXPECT_EQ(mux.unshown(1).newest, std::vector<std::string>{"[0] a999\n"});
    EXPECT_EQ(show(mux.flush()),
              "… 1,097 lines not shown; all are in the log (%distributed logs)\n"
              "[2] c1\n[2] c2\n[1] b98\n[1] b99\n[0] a998\n[0] a999\n");
}

TEST(OutputFlood, TheTailOfLongLinesIsSharedByBytes) {
    OutputMux mux({.world = 2, .max_bytes = 0, .tail_lines = 200});
    mux.add(1, Stream::out, "a short last word\n", kStart);
    (void)mux.take(kStart + 1s);
    const std::string line = std::string(10'000, 'x') + "\n";
    for (int i = 0; i < 30; ++i) mux.add(0, Stream::out, line, kStart + 1s);
    const std::string tail = show(mux.flush());
    EXPECT_NE(tail.find("[1] a short last word\n"), std::string::npos);
    EXPECT_LT(tail.size(), ChunkWriter::kLeastTailBytes + 200);
    EXPECT_TRUE(tail.ends_with("xxx\n"));
}

TEST(OutputFlood, TheTailIsBoundedInBytesToo) {
    OutputMux mux({.world = 1, .max_bytes = 0, .tail_lines = 200});
    const std::string line = std::string(60'000, 'x') + "\n";
    for (int i = 0; i < 30; ++i) mux.add(0, Stream::out, line, kStart);
    EXPECT_LE(show(mux.flush()).size(), (std::size_t{1} << 20) + 100);
}

// A front end that drops what comes too fast is never sent that much, and the rest is said.
TEST(OutputFlood, ThatIsOnlyTooFastEndsWhenItHasBeenSlowForAWhile) {
    OutputMux mux({.world = 1, .tail_lines = 2, .burst = 100, .bytes_per_second = 100});
    std::string text;
    for (int i = 0; i < 30; ++i) text += "line " + std::to_string(i) + "\n";
    mux.add(0, Stream::out, text, kStart);
    const std::string head = show(mux.take(kStart));
    EXPECT_TRUE(head.starts_with("line 0\nline 1\n")) << head;
    EXPECT_LE(head.size(), 110U);
    ASSERT_TRUE(mux.next_due());
    EXPECT_GT(*mux.next_due(), kStart + 400ms) << "half of what may come at once";
    EXPECT_EQ(show(mux.take(kStart + 400ms)), "");
    const std::string tail = show(mux.take(*mux.next_due()));
    EXPECT_TRUE(tail.starts_with("… ")) << tail;
    EXPECT_TRUE(tail.ends_with("line 29\n")) << tail;
    mux.add(0, Stream::out, "after\n", kStart + 2s);
    EXPECT_EQ(show(mux.take(kStart + 2s)), "after\n");
    EXPECT_EQ(mux.next_due(), std::nullopt);
}

TEST(OutputFlood, TextAtAnAllowedPaceIsAllShown) {
    OutputMux mux({.world = 1, .burst = 100, .bytes_per_second = 100});
    std::string seen;
    for (int i = 0; i < 100; ++i) {
        mux.add(0, Stream::out, "0123456\n", kStart + i * 100ms);
        seen += show(mux.take(kStart + i * 100ms));
    }
    EXPECT_EQ(seen.size(), 800U);
}

}  // namespace
}  // namespace sgpu
