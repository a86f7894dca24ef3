// What waits for a notebook that takes no output is bounded, and what is dropped is said.
#include "runtime/output_queue.h"

#include <gtest/gtest.h>

namespace sgpu {
namespace {

OutputEvent display(CallId call, std::string content) {
    return {call, {0}, "display_data", std::move(content)};
}

std::string show(const std::vector<OutputEvent>& events) {
    std::string text;
    for (const OutputEvent& event : events)
        text += event.ranks.empty() ? event.content : "<" + event.content + ">";
    return text;
}

TEST(OutputQueue, KeepsTheOrder) {
    OutputQueue queue;
    queue.add_text(1, Stream::out, "a\n");
    queue.add_display(display(1, "figure"));
    queue.add_text(1, Stream::out, "b\n");
    EXPECT_EQ(show(queue.take()), "a\n<figure>b\n");
    EXPECT_TRUE(queue.empty());
}

TEST(OutputQueue, NeighbouringTextOfOneStreamAndCallIsOneEvent) {
    OutputQueue queue;
    queue.add_text(1, Stream::out, "a\n");
    queue.add_text(1, Stream::out, "b\n");
    queue.add_text(1, Stream::err, "c\n");
    queue.add_text(2, Stream::err, "d\n");
    EXPECT_EQ(queue.take().size(), 3U);
}

TEST(OutputQueue, OfTooManyDisplaysTheOldestAreDroppedAndSaid) {
    OutputQueue queue({.displays = 2});
    queue.add_text(1, Stream::out, "a\n");
    for (const char* each : {"1", "2", "3", "4"}) queue.add_display(display(1, each));
    EXPECT_EQ(show(queue.take()),
              "a\n<3><4>… 2 displays not shown: the notebook took no output for too long\n");
    queue.add_display(display(1, "5"));
    EXPECT_EQ(show(queue.take()), "<5>") << "it is said once";
}

TEST(OutputQueue, BytesAreBoundedButOneDisplayAlwaysPasses) {
    OutputQueue queue({.bytes = 10});
    queue.add_display(display(7, "0123456789abc"));
    EXPECT_EQ(show(queue.take()), "<0123456789abc>");
    queue.add_display(display(7, "123456"));
    queue.add_display(display(7, "789012"));
    const auto events = queue.take();
    EXPECT_EQ(show(events),
              "<789012>… 1 display not shown: the notebook took no output for too long\n");
    EXPECT_EQ(events.back().call, 7U);
}

}  // namespace
}  // namespace sgpu
