#include <Python.h>
// Python.h wants to be first.
#include <pthread.h>

#include <ctime>

#include "kernel/signal_window.h"

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

SignalWindow::SignalWindow() {
    forget_interrupts();
    const sigset_t set = only_interrupt();
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

SignalWindow::~SignalWindow() {
    block_interrupts();
    forget_interrupts();
}

}  // namespace sgpu
