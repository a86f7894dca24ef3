// interrupt_watch.h: follows an interrupt until Python has seen it.
#pragma once

#include <atomic>

#include "runtime/event_fd.h"
#include "runtime/nudge.h"

namespace sgpu {

// Learns of each SIGINT that Python handles, however it came, asks Python to say when it has looked
// for signals, and nudges the main thread until then (runtime/nudge.h says why).
//
// Threads: constructed and armed in the main thread, with the GIL; told by any; looked at by one
// that needs no GIL. One lives at a time, as long as the process.
class InterruptWatch {
public:
    InterruptWatch();
    ~InterruptWatch();
    InterruptWatch(const InterruptWatch&) = delete;
    InterruptWatch& operator=(const InterruptWatch&) = delete;

    // Sets itself before the handler that Python has installed for SIGINT. To be repeated: each
    // signal.signal(SIGINT, ...) takes it away again.
    void arm() const;
    // An interrupt was sent.
    void tell() const { came_.notify(); }

    int fd() const { return came_.fd(); }
    // To be called when fd() is readable, and after as many milliseconds as the last call
    // returned; -1: no need.
    int look();

private:
    EventFd came_;
    Nudge nudge_;
    std::atomic<bool> seen_{true};
};

}  // namespace sgpu
