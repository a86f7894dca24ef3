#include "kernel/interrupt_watch.h"

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace sgpu {
namespace {

// What the signal handler uses. A child that a cell forks has it, too, and shares the descriptor.
std::atomic<const EventFd*> came{nullptr};
std::atomic<void (*)(int)> handler_of_python{nullptr};
pid_t owner = 0;

void on_interrupt(int signum) {
    handler_of_python.load()(signum);
    const EventFd* told = came;
    const int before = errno;
    if (told && ::getpid() == owner) told->notify();
    errno = before;
}

}  // namespace

InterruptWatch::InterruptWatch() {
    owner = ::getpid();
    came = &came_;
}

InterruptWatch::~InterruptWatch() {
    came = nullptr;
}

void InterruptWatch::arm() const {
    struct sigaction action {};
    ::sigaction(SIGINT, nullptr, &action);
    const bool plain = (action.sa_flags & SA_SIGINFO) == 0;
    if (!plain || action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) return;
    if (action.sa_handler == on_interrupt) return;
    handler_of_python = action.sa_handler;
    action.sa_handler = on_interrupt;
    ::sigaction(SIGINT, &action, nullptr);
}

int InterruptWatch::look() {
    const auto now = Nudge::Clock::now();
    if (came_.take()) {
        // Python runs handlers first and pending calls after them, and needs no GIL for this.
        const auto see = [](void* seen) {
            static_cast<std::atomic<bool>*>(seen)->store(true);
            return 0;
        };
        seen_ = false;
        if (Py_AddPendingCall(see, &seen_) == 0) nudge_.begin(now);
    }
    if (seen_) nudge_.end();
    return nudge_.look(now);
}

}  // namespace sgpu
