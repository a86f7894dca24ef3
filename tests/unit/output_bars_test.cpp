// Bars as libraries write them for a terminal, byte by byte as they were recorded.
#include <gtest/gtest.h>

#include "tests/unit/mux_support.h"

namespace sgpu {
namespace {

const std::string kHide = "\x1b[?25l";
const std::string kShow = "\x1b[?25h";
const std::string kErase = "\r\x1b[2K";
const std::string kEraseTwo = "\r\x1b[2K\x1b[1A\x1b[2K";

// rich.progress, one task: all frames have a line erased, the bar, and no line end but the last.
TEST(Bars, OneOfRichIsOneLine) {
    OutputMux mux({.world = 2});
    add_to_all(mux, 2, kHide, kStart);
    TimePoint now = kStart;
    for (const char* percent : {"  0%", " 50%", "100%"}) {
        add_to_all(mux, 2, kErase + "task \xe2\x94\x81 " + percent, now);
        now += 300ms;
        EXPECT_EQ(show(mux.take(now)), "") << "a bar is no partial line";
        EXPECT_EQ(show(mux.live()), std::string("[0-1] task \xe2\x94\x81 ") + percent);
    }
    add_to_all(mux, 2, kErase + "task \xe2\x94\x81 100%\n" + kShow + "done\n", now);
    EXPECT_EQ(show(mux.take(now + 1s)), "[0-1] task \xe2\x94\x81 100%\n[0-1] done\n");
    EXPECT_EQ(show(mux.live()), "");
}

// The same with a line printed above the bar, as Lightning's warnings are.
TEST(Bars, LinesAboveOneOfRichAreLinesAndTheBarIsNot) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, kHide + kErase + "task 0%", kStart);
    mux.add(0, Stream::out, kErase + "first warning\ntask 10%", kStart + 1ms);
    EXPECT_EQ(show(mux.take(kStart + 900ms)), "first warning\n");
    EXPECT_EQ(show(mux.live()), "[0] task 10%");
    mux.add(0, Stream::out, kErase + "second warning\ntask 20%", kStart + 910ms);
    mux.add(0, Stream::out, kErase + "task 30%\n" + kShow, kStart + 911ms);
    EXPECT_EQ(show(mux.take(kStart + 3s)), "second warning\ntask 30%\n");
    mux.add(0, Stream::out, "\nafter a blank line\n", kStart + 3s);
    EXPECT_EQ(show(mux.flush()), "\nafter a blank line\n");
}

// Two tasks: each frame goes one line up.
TEST(Bars, TwoOfRichKeepTheirPlacesUnderLinesPrintedAbove) {
    OutputMux mux({.world = 1});
    TimePoint now = kStart;
    std::string seen;
    mux.add(0, Stream::out, kHide + kErase + "a 0%\nb 0%", now);
    for (int i = 1; i <= 3; ++i) {
        now += 400ms;
        const std::string n = std::to_string(i);
        mux.add(0, Stream::out, kEraseTwo + "hello " + n + "\na " + n + "%\nb " + n + "%", now);
        seen += show(mux.take(now));
        mux.add(0, Stream::out, kEraseTwo + "a " + n + "%\nb " + n + "%", now);
        seen += show(mux.take(now + 300ms));
        EXPECT_EQ(show(mux.live()), "[0] a " + n + "%|[0] b " + n + "%");
    }
    EXPECT_EQ(seen, "hello 1\nhello 2\nhello 3\n");
    mux.add(0, Stream::out, kEraseTwo + "a 100%\nb 100%\n" + kShow, now);
    EXPECT_EQ(show(mux.take(now + 1s)), "a 100%\nb 100%\n");
    EXPECT_EQ(show(mux.live()), "");
}

// A program that erased one line once, and says nothing of the cursor, prints plain lines again.
TEST(Bars, FramesEndWhenNothingIsDrawn) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, kErase + "fetching 100%\n", kStart);
    EXPECT_EQ(show(mux.take(kStart + 1s)), "fetching 100%\n");
    mux.add(0, Stream::out, "begun", kStart + 5s);
    EXPECT_EQ(show(mux.take(kStart + 6s)), "begun") << "a partial line, not a bar";
}

// tqdm.write() with two bars: both are cleared, the line printed, both drawn again.
TEST(Bars, LinesThatTqdmWritesBetweenItsBarsAreLines) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::err, "\router:  10%|#   |", kStart);
    mux.add(0, Stream::err, "\n\rinner:  50%|##  |\x1b[A", kStart);
    const std::string cleared = "\r               \r\n\r               \r\x1b[A";
    mux.add(0, Stream::err, cleared, kStart);
    mux.add(0, Stream::out, "message\n", kStart);
    EXPECT_EQ(show(mux.take(kStart)), "message\n");
    mux.add(0, Stream::err, "\router:  20%|#   |\n\rinner:  60%|##  |\x1b[A", kStart);
    EXPECT_EQ(show(mux.live()), "[0] outer:  20%|#   ||[0] inner:  60%|##  |");
}

// Keras 3: back over the whole bar, a return, and bar and figures anew; a line end at the last.
TEST(Bars, KerasLeavesItsLastState) {
    OutputMux mux({.world = 2});
    std::string before;
    for (int step = 1; step <= 3; ++step) {
        const std::string bar = "\x1b[1m" + std::to_string(step) +
                                "/3\x1b[0m \x1b[32m\xe2\x94\x81\x1b[0m\x1b[37m\xe2\x94\x81\x1b[0m "
                                "\x1b[1m0s\x1b[0m 2ms/step - loss: 0." +
                                std::to_string(9 - step);
        add_to_all(mux, 2, std::string(before.size(), '\b') + "\r" + bar, kStart);
        EXPECT_EQ(show(mux.take(kStart + 1s)), "");
        before = bar;
    }
    add_to_all(mux, 2, "\n", kStart + 1s);
    EXPECT_EQ(show(mux.flush()), "[0-1] " + before + "\n");
}

// What prints a percentage and goes back over it, figure by figure.
TEST(Bars, BackspacesAloneMoveInPlace) {
    OutputMux mux({.world = 1});
    mux.add(0, Stream::out, "loading   0%", kStart);
    for (const char* percent : {" 10%", " 55%", "100%"})
        mux.add(0, Stream::out, std::string("\b\b\b\b") + percent, kStart);
    EXPECT_EQ(show(mux.live()), "[0] loading 100%");
    mux.add(0, Stream::out, "\n", kStart);
    EXPECT_EQ(show(mux.flush()), "loading 100%\n");
}

}  // namespace
}  // namespace sgpu
