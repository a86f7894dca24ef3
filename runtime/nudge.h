// nudge.h: sees to it that an interrupt is not slept over.
//
// At a signal Python only makes a note, and looks for notes between bytecodes. A signal that comes
// after its last look and before a system call that waits is noted, and the call begins all the
// same: time.sleep(1000) sleeps on. Where other threads want the GIL, too, that gap is as wide as
// their turn: one interrupt in ten was slept over. A nudge is a signal that does nothing but end
// the call, after which Python's own functions look again (PEP 475).
#pragma once

#include <chrono>
#include <optional>

namespace sgpu {

// Nudges the main thread until it has seen an interrupt, ever more seldom: first after 10 ms, the
// last time after 5 s, and not while the process ignores SIGINT. Code that does not return to
// Python has them for nothing.
//
// Threads: constructed in the main thread, else used by one other.
class Nudge {
public:
    using Clock = std::chrono::steady_clock;

    // Takes SIGURG, which is ignored where nobody handles it and which nobody sends unasked.
    Nudge();

    // The main thread was interrupted.
    void begin(Clock::time_point now);
    // It has seen it.
    void end() { next_.reset(); }
    // Sends what is due. Milliseconds for poll until the next is; -1: none will be.
    int look(Clock::time_point now);

private:
    std::chrono::milliseconds pause_{0};
    std::optional<Clock::time_point> next_;
};

}  // namespace sgpu
