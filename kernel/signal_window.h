// signal_window.h: who gets SIGINT, and when.
//
// SIGINT is blocked in every thread at all times, but for the main thread while user code runs. So
// an interrupt hits user code or nothing: not the sockets, not our glue, not the next cell.
#pragma once

#include <csignal>

#include "kernel/interrupt_watch.h"

namespace sgpu {

// Blocks all signals in the calling thread; the old mask comes back on destruction. Threads are
// made under it, so that signals always go to the main thread. And the main thread waits under it,
// with old_mask() for ppoll: a signal between its last look at Python's signals and the wait ends
// the wait.
class AllSignalsBlocked {
public:
    AllSignalsBlocked();
    ~AllSignalsBlocked();
    AllSignalsBlocked(const AllSignalsBlocked&) = delete;
    AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

    const sigset_t& old_mask() const { return old_; }

private:
    sigset_t old_{};
};

// Blocks SIGINT in the calling thread, for good. To be called before any thread exists.
void block_interrupts();

// While it lives, SIGINT reaches the calling thread and raises KeyboardInterrupt there, or runs the
// user's handler, and `watch` sees that it does. SIGINTs from before and those that come too late
// are forgotten, also those that Python has only noted.
//
// REQUIRES: the main thread, with the GIL; SIGINT ignored by way of Python before the first one.
class SignalWindow {
public:
    explicit SignalWindow(const InterruptWatch& watch);
    ~SignalWindow();
    SignalWindow(const SignalWindow&) = delete;
    SignalWindow& operator=(const SignalWindow&) = delete;
};

}  // namespace sgpu
