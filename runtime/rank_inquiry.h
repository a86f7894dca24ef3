// rank_inquiry.h: finding out, inside a rank, where its main thread is.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/event_fd.h"

namespace sgpu {

// Asks in two ways, one after the other, both while the main thread may be stuck: a signal at which
// faulthandler writes the Python stacks into a memfd, without the GIL; then a hook in Python, which
// knows the collectives, in a thread of its own, for it may wait for the GIL for ever. A hook that
// has not come back is not called again until it has.
//
// Threads: the agent's, but for construction and the signal handler. Costs nothing until begin().
class RankInquiry {
public:
    using Clock = std::chrono::steady_clock;

    struct Options {
        int dump_signal = 0;                // faulthandler writes to dump_fd at it, then chains
        int dump_fd = -1;                   // a memfd; stays the caller's
        std::function<std::string()> hook;  // what Python knows; takes the GIL; never throws
    };
    struct Answer {
        std::deque<std::uint64_t> tokens;  // of all that asked
        std::string stack;        // faulthandler's text; says so if the main thread is mute
        std::string collectives;  // the hook's text; "" if it did not answer
    };

    explicit RankInquiry(Options options);

    // Asks; `stack`: with the signal, which interrupts system calls of the main thread. While an
    // inquiry runs, another is answered with it.
    void begin(std::uint64_t token, bool stack, Clock::time_point now);
    bool running() const { return deadline_.has_value(); }
    int ready_fd() const;  // readable when look() may have something new
    std::optional<Answer> look(Clock::time_point now);

private:
    // Shared with the hook's thread, which may outlive the inquiry: hence shared_ptr.
    struct Question;

    void ask_python();
    std::optional<Answer> finish();

    const Options options_;
    Answer answer_;
    std::optional<Clock::time_point> deadline_;  // of the running inquiry
    bool wants_stack_ = false;                   // and has none yet
    std::shared_ptr<Question> question_;         // the last one put to Python
};

// A handler that tells the inquiry that a dump is over. Install it before
// faulthandler.register(signum, file=…, chain=True), which then runs it after the dump.
void install_dump_signal(int signum);

}  // namespace sgpu
