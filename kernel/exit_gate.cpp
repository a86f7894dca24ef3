#include "kernel/exit_gate.h"

namespace sgpu {

void ExitGate::request(bool restart) {
    {
        const std::lock_guard lock(mutex_);
        if (step_ != Step::running) return;
        step_ = Step::asked;
        restart_ = restart;
    }
    requested_ = true;
    changed_.notify_all();
}

bool ExitGate::restart() const {
    const std::lock_guard lock(mutex_);
    return restart_;
}

void ExitGate::wait_for_main() {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kCellGrace, [&] { return step_ >= Step::leaving; })) {
        changed_.wait_for(lock, kExitGrace, [&] { return step_ == Step::done; });
    }
}

void ExitGate::advance(Step step) {
    {
        const std::lock_guard lock(mutex_);
        if (step_ < step) step_ = step;
    }
    changed_.notify_all();
}

}  // namespace sgpu
