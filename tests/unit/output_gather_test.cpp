// When a rank's writes go out at once, and when they wait for more.
#include "runtime/output_gather.h"

#include <gtest/gtest.h>

namespace sgpu {
namespace {

using namespace std::chrono_literals;
using Then = OutputGather::Then;
using Segments = std::vector<OutputGather::Segment>;

constexpr TimePoint kStart{1h};

TEST(OutputGather, ALineGoesOutAtOnce) {
    OutputGather gather;
    EXPECT_EQ(gather.add(Stream::out, "loss 0.5", 0, kStart), Then::wait);
    EXPECT_EQ(gather.add(Stream::out, "\n", 0, kStart), Then::write);
    EXPECT_EQ(gather.take(), (Segments{{Stream::out, 0, "loss 0.5\n"}}));
    EXPECT_TRUE(gather.empty());
}

TEST(OutputGather, LinesThatComeTooFastWait) {
    OutputGather gather;
    int at_once = 0;
    for (int i = 0; i < 1000; ++i)
        at_once += gather.add(Stream::out, "x\n", 0, kStart) == Then::write ? 1 : 0;
    EXPECT_EQ(at_once, OutputGather::kBurst);
    EXPECT_EQ(gather.take()[0].text.size(), 2000U);
}

TEST(OutputGather, AfterAFloodLinesGoOutAtOnceAgain) {
    OutputGather gather;
    for (int i = 0; i < 1000; ++i) (void)gather.add(Stream::out, "x\n", 0, kStart);
    EXPECT_EQ(gather.add(Stream::out, "x\n", 0, kStart + 500us), Then::wait);
    EXPECT_EQ(gather.add(Stream::out, "x\n", 0, kStart + 2ms), Then::write);
}

TEST(OutputGather, SteadyLinesNeverWait) {
    OutputGather gather;
    for (int i = 0; i < 1000; ++i)
        EXPECT_EQ(gather.add(Stream::out, "x\n", 0, kStart + i * 1ms), Then::write) << i;
}

TEST(OutputGather, ALongTextWithoutALineEndDoesNotPileUp) {
    OutputGather gather;
    const std::string text(OutputGather::kEnough / 2, 'x');
    EXPECT_EQ(gather.add(Stream::out, text, 0, kStart), Then::wait);
    EXPECT_EQ(gather.add(Stream::out, text, 0, kStart), Then::write);
}

TEST(OutputGather, KeepsTheOrderOfStreamsAndCalls) {
    OutputGather gather;
    for (const auto& [stream, owner] : {std::pair<Stream, CallId>{Stream::out, 0},
                                        {Stream::out, 0},
                                        {Stream::err, 0},
                                        {Stream::out, 3},
                                        {Stream::out, 0}})
        (void)gather.add(stream, "x", owner, kStart);
    EXPECT_EQ(gather.take(), (Segments{{Stream::out, 0, "xx"},
                                       {Stream::err, 0, "x"},
                                       {Stream::out, 3, "x"},
                                       {Stream::out, 0, "x"}}));
}

TEST(OutputGather, NothingIsNoSegment) {
    OutputGather gather;
    EXPECT_EQ(gather.add(Stream::out, "", 0, kStart), Then::wait);
    EXPECT_TRUE(gather.empty());
}

}  // namespace
}  // namespace sgpu
