// rank_agent.h: the thread inside a rank that talks to the pool while Python does what it likes.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/event_fd.h"
#include "runtime/gpu/warm.h"
#include "runtime/nudge.h"
#include "runtime/rank_inquiry.h"
#include "runtime/rank_output.h"
#include "runtime/wire.h"

namespace sgpu {

// Owns the channel to the pool and a thread without the GIL that serves it. Answers pings, hands
// requests to the main thread, interrupts it by SIGINT, shuts its collectives' sockets, and says
// where it is (rank_inquiry.h): all of it while the main thread is stuck.
//
// Threads: constructed in the main thread, which also calls take, begin_work and end_work;
// send may be called from any thread. The agent's thread blocks all signals.
// A forked child has the memory but not the thread: destroying its copy only lets go of it.
class RankAgent {
public:
    struct Options {
        std::string key;
        UniqueFd socket;  // the rank's end of the socket pair
        pid_t guard = 0;  // whose death is this process's death
        RankInquiry::Options inquiry;
        std::string net;      // address prefix of collectives' sockets
        std::string service;  // JSON for Hello
    };

    explicit RankAgent(Options options);
    ~RankAgent();
    RankAgent(const RankAgent&) = delete;
    RankAgent& operator=(const RankAgent&) = delete;

    int request_fd() const { return requests_ready_.fd(); }  // readable when take() has something
    // An Execute or a Quit. A Warm is carried out on the way.
    std::optional<Message> take();
    // Before user code: waits for a CUDA context that is being made (gpu/warm.h says why).
    void settle() { warmer_.settle(); }

    // The message is in the system's hands when it returns. Blocks while the pool is slow to read.
    // False if the pool is gone or the message is too long for a packet.
    bool send(const Body& body, const std::vector<std::string>& frames, int buffer);

    // The main thread runs user code of `call` from begin_work to end_work; only then is it
    // interrupted. An interrupt that came before its call began comes with begin_work; a late one
    // never reaches into the next call.
    void begin_work(CallId call, int world);
    void end_work();
    CallId busy() const { return busy_; }
    // Whether `call`, whose user code has not begun, is to be ended. For waits before it.
    bool unwanted(CallId call);
    std::int64_t began_ns() const {
        return began_ns_;
    }  // when begin_work was called, CLOCK_MONOTONIC
    // Why the running call is interrupted: "stop", "peer" or "deadline"; "" if it is not. Called by
    // the signal handler in Python, and marks the interrupt as seen by user code.
    const char* see_interrupt();

    // Readable when collectives are to be aborted: for what only Python can abort (NCCL).
    int cut_fd() const { return cut_ready_.fd(); }

    // What this process prints. Its late parts are flushed by the agent's thread.
    RankOutput& output() { return output_; }

private:
    void serve();
    int patience();
    void handle(Message message);
    void interrupt(const Interrupt& wanted);
    void answer_if_known();
    void follow_guard();
    void end_without_channel() const;
    void give_to_main(Message message);

    const Options options_;
    const pid_t pid_;
    RankOutput output_;
    ContextWarmer warmer_;
    std::atomic<bool> stop_ = false;
    bool guarded_ = false;
    RankInquiry inquiry_;
    Nudge nudge_;
    std::vector<Interrupt> held_;  // interrupts that wait for the end of an inquiry
    std::int64_t began_ns_ = 0;    // of the running call; the main thread's
    int cuts_ = 0;                 // of the running call

    std::mutex mutex_;  // guards what follows: held from the check of a call to its interrupt
    std::atomic<CallId> busy_{0};
    std::atomic<bool> seen_{false};             // user code has got the interrupt
    std::atomic<const char*> reason_{nullptr};  // a literal; read by the signal handler
    int world_ = 0;
    CallId begun_ = 0;  // the last call whose user code has begun
    Interrupt early_;   // of a call that waits or is still being prepared
    std::deque<Message> requests_;
    EventFd requests_ready_;
    EventFd cut_ready_;
    EventFd stop_ready_;
    std::thread thread_;
};

}  // namespace sgpu
