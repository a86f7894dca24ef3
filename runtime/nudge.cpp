#include "runtime/nudge.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

namespace sgpu {
namespace {

constexpr int kSignal = SIGURG;
constexpr std::chrono::milliseconds kFirst{10};
constexpr std::chrono::milliseconds kLongest{2560};  // 5 s after the interrupt, all in all

// Code that ignores interrupts counts on that its system calls are not ended.
bool interrupts_ignored() {
    struct sigaction action {};
    ::sigaction(SIGINT, nullptr, &action);
    return action.sa_handler == SIG_IGN;
}

}  // namespace

Nudge::Nudge() {
    struct sigaction nothing {};
    nothing.sa_handler = [](int) {};
    nothing.sa_flags = SA_ONSTACK;  // no SA_RESTART: the call is to end
    ::sigaction(kSignal, &nothing, nullptr);
}

void Nudge::begin(Clock::time_point now) {
    pause_ = kFirst;
    next_ = now + pause_;
}

int Nudge::look(Clock::time_point now) {
    if (next_ && *next_ <= now) {
        if (!interrupts_ignored()) ::syscall(SYS_tgkill, ::getpid(), ::getpid(), kSignal);
        pause_ *= 2;
        next_.reset();
        if (pause_ <= kLongest) next_ = now + pause_;
    }
    if (!next_) return -1;
    return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(*next_ - now).count());
}

}  // namespace sgpu
