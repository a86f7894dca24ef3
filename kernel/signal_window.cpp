#include "kernel/signal_window.h"

#include <pthread.h>
#include <pybind11/pybind11.h>

#include <ctime>

namespace py = pybind11;

namespace sgpu {
namespace {

sigset_t only_interrupt() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    return set;
}

// Pending signals first: another thread may have taken one, and then only Python knows of it.
void forget_interrupts() {
    const sigset_t set = only_interrupt();
    const timespec now{0, 0};
    while (sigtimedwait(&set, nullptr, &now) == SIGINT) {
    }
    while (PyErr_CheckSignals() != 0) PyErr_Clear();
}

// Changes Python's handler of SIGINT, if it is `from`: a handler of the user's stays. Both are
// names in the module signal.
void change_handler(const char* from, const char* to) {
    const py::module_ signals = py::module_::import("signal");
    if (signals.attr("getsignal")(SIGINT).is(signals.attr(from))) {
        signals.attr("signal")(SIGINT, signals.attr(to));
    }
}

}  // namespace

AllSignalsBlocked::AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old_);
}

AllSignalsBlocked::~AllSignalsBlocked() {
    pthread_sigmask(SIG_SETMASK, &old_, nullptr);
}

void block_interrupts() {
    const sigset_t set = only_interrupt();
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

SignalWindow::SignalWindow(const InterruptWatch& watch) {
    forget_interrupts();
    change_handler("SIG_IGN", "default_int_handler");
    watch.arm();
    const sigset_t set = only_interrupt();
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

// Outside cells SIGINT is ignored: a thread that C code started in a cell may have it unblocked,
// and Python would keep the signal for the main thread.
SignalWindow::~SignalWindow() {
    block_interrupts();
    forget_interrupts();
    try {
        change_handler("default_int_handler", "SIG_IGN");
    } catch (...) {
        PyErr_Clear();  // SIGINT stays blocked in this thread, which is what counts
    }
}

}  // namespace sgpu
