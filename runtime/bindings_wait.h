// bindings_wait.h: waits in Python's main thread for a descriptor or a signal, without a lost
// wake-up. Included by bindings only.
#pragma once

#include <poll.h>
#include <pthread.h>
#include <pybind11/pybind11.h>

#include <chrono>
#include <csignal>
#include <optional>

namespace sgpu {

// True once `fd` is readable, false after `limit` (none: for ever). Blocks without the GIL.
// Throws error_already_set if a Python signal handler raised, KeyboardInterrupt by default.
// REQUIRES: the GIL is held.
inline bool wait_readable_or_signal(int fd, std::optional<std::chrono::milliseconds> limit) {
    const auto end =
        std::chrono::steady_clock::now() + limit.value_or(std::chrono::milliseconds{0});
    for (;;) {
        // Signals stay blocked from the check until ppoll lets them in: one that comes in between
        // is delivered inside ppoll and ends it.
        sigset_t all;
        sigset_t before;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        if (PyErr_CheckSignals() != 0) {
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
            throw pybind11::error_already_set();
        }
        pollfd item{fd, POLLIN, 0};
        int ready = 0;
        {
            const pybind11::gil_scoped_release release;
            timespec left{0, 0};
            if (limit) {
                using std::chrono::nanoseconds;
                const auto ns = std::max<std::int64_t>(
                    0,
                    std::chrono::duration_cast<nanoseconds>(end - std::chrono::steady_clock::now())
                        .count());
                left = {ns / 1'000'000'000, ns % 1'000'000'000};
            }
            ready = ::ppoll(&item, 1, limit ? &left : nullptr, &before);
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        if (ready > 0) return true;
        if (ready == 0) return false;
    }
}

// The same for a ticket, which has no descriptor if there was none left for it: then it is looked
// at again and again.
template <class Ticket>
bool wait_for_end(const Ticket& ticket, std::optional<std::chrono::milliseconds> limit) {
    if (ticket.done_fd() >= 0) return wait_readable_or_signal(ticket.done_fd(), limit);
    constexpr std::chrono::milliseconds kLook{20};
    const auto begin = std::chrono::steady_clock::now();
    while (!ticket.done()) {
        if (limit && std::chrono::steady_clock::now() - begin >= *limit) return false;
        wait_readable_or_signal(-1, kLook);
    }
    return true;
}

}  // namespace sgpu
