// output_gather.h: which of a rank's writes go out at once, and which wait a moment for more.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/stream.h"

namespace sgpu {

// A line that ends goes out at once, as Python's own line-buffered streams do it, until lines come
// faster than kLinesPerMs for longer than a burst of kBurst lines: then they are gathered, for a
// system call per line costs more than the line. What waits is to be taken kGather after the first
// of it, or when there is kEnough.
//
// Threads: one thread at a time. Pure: no clock, no I/O; `now` must not go back.
class OutputGather {
public:
    static constexpr std::chrono::milliseconds kGather{4};
    static constexpr std::size_t kEnough = 32UL << 10;
    static constexpr double kBurst = 64;
    static constexpr double kLinesPerMs = 1;

    // Neighbouring writes to one stream for one call.
    struct Segment {
        Stream stream = Stream::out;
        CallId owner = 0;  // the call it belongs to; 0: the one that runs
        std::string text;
        friend bool operator==(const Segment&, const Segment&) = default;
    };

    enum class Then { wait, write };
    // Keeps `bytes`. Then::write: all that is kept is to go out now.
    Then add(Stream stream, std::string_view bytes, CallId owner, TimePoint now);

    // What is kept, in the order of the writes.
    std::vector<Segment> take();
    bool empty() const { return segments_.empty(); }

private:
    bool line_may_go(TimePoint now);

    std::vector<Segment> segments_;
    std::size_t bytes_ = 0;
    double credit_ = kBurst;  // lines that may still go out at once
    TimePoint credit_at_;
};

}  // namespace sgpu
