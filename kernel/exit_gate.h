// exit_gate.h: how the main thread and the control thread end the process together.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace sgpu {

// The steps of the end, in order:
//
//   running ──request──► asked ──main left the cell──► leaving ──exit functions ran──► done
//
// Whoever asks first decides whether it is a restart. The control thread waits for the main thread
// at each step, but for a bounded time: a cell may be stuck in C code with the GIL held.
//
// Threads: any.
class ExitGate {
public:
    static constexpr std::chrono::milliseconds kCellGrace{400};   // from asked to leaving
    static constexpr std::chrono::milliseconds kExitGrace{2000};  // from leaving to done

    void request(bool restart);
    bool requested() const { return requested_; }
    bool restart() const;

    void leaving() { advance(Step::leaving); }
    void done() { advance(Step::done); }

    // Returns once the main thread is done, or has used up its time.
    void wait_for_main();

private:
    enum class Step { running, asked, leaving, done };
    void advance(Step step);

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    Step step_ = Step::running;
    bool restart_ = false;
    std::atomic<bool> requested_{false};
};

}  // namespace sgpu
