// control.h: the control channel and the heartbeat, which answer whatever the main thread does.
#pragma once

#include <functional>
#include <thread>

#include "kernel/connection_file.h"
#include "kernel/exit_gate.h"
#include "kernel/interrupt_watch.h"
#include "kernel/iopub.h"
#include "kernel/message.h"
#include "kernel/parent_watch.h"
#include "runtime/event_fd.h"

namespace sgpu {

// Owns both sockets and a thread that never takes the GIL. It answers interrupt_request,
// shutdown_request and kernel_info_request, and each other request with an error, and sees that an
// interrupt is not lost. The process ends
// on this thread: after a shutdown, or at once when the parent is gone.
//
// Threads: construct, start() and finish() from the main thread.
class Control {
public:
    struct Hooks {
        std::function<void()> interrupt;        // make the running cell stop; returns at once
        std::function<void()> wake_main;        // see that ExitGate::requested() is noticed
        std::function<nl::json()> kernel_info;  // content of the reply
    };

    // Errors: throws zmq::error_t if a port is taken.
    Control(zmq::context_t& context, const ConnectionFile& file, const Signer& signer, Iopub& iopub,
            ExitGate& gate, InterruptWatch& interrupts, Hooks hooks);

    // REQUIRES: called once.
    void start();

    // Ends the process from the thread: as after a shutdown_request, without a reply.
    void finish() { finish_.notify(); }

private:
    void run();
    void answer_heartbeat();
    void handle_control();
    void dispatch(const Message& request);
    nl::json reply_to(const Message& request);
    [[noreturn]] void end_process();

    zmq::context_t& context_;
    const Signer& signer_;
    Iopub& iopub_;
    ExitGate& gate_;
    InterruptWatch& interrupts_;
    Hooks hooks_;
    ParentWatch parent_;
    zmq::socket_t control_;
    zmq::socket_t heartbeat_;
    EventFd finish_;
    std::thread thread_;
};

}  // namespace sgpu
