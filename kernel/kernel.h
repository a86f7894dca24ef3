// kernel.h: all parts of the kernel process, built in reading order.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "kernel/compat.h"
#include "kernel/connection_file.h"
#include "kernel/control.h"
#include "kernel/exit_gate.h"
#include "kernel/interpreter.h"
#include "kernel/interrupt_watch.h"
#include "kernel/iopub.h"
#include "kernel/output.h"
#include "kernel/server.h"

namespace sgpu {

// Lives until the process ends, by finish().
//
// Threads: construct, run(), wait(), ask(), call_interruptible(), begin_cell() and finish() on the
// main thread; all others on any. No function is called with the GIL but call_interruptible() and
// write().
class Kernel {
public:
    // Blocks SIGINT in the calling thread, binds all sockets, captures descriptors 1 and 2, and
    // answers the control channel from then on.
    // REQUIRES: the main thread, the GIL (only here), and that no other thread has been started
    // that could take SIGINT.
    // Errors: throws std::exception if the file or a port cannot be used.
    Kernel(const std::string& connection_file, const std::string& version,
           const std::string& python_version);

    // Handles requests until the process is to end. True if that is a restart.
    bool run(pybind11::object front);

    // Until set_ready(), run() waits without Python; afterwards in front.idle(), which calls
    // wait().
    void set_ready() { ready_ = true; }

    // As Server::wait(); also true if the process is to end.
    bool wait(std::optional<std::chrono::milliseconds> timeout, int other_fd,
              const sigset_t& let_in);
    void wake() { server_->wake(); }
    bool stopping() const { return gate_.requested(); }

    // The process is to end after this request.
    void stop(bool restart);

    // Runs `function` with SIGINT let in. What it raises comes out.
    // REQUIRES: the GIL.
    pybind11::object call_interruptible(const pybind11::function& function);

    // Empty if SIGINT came; Python's error is set then.
    std::optional<std::string> ask(const std::string& prompt, bool password);

    void publish(const std::string& type, nl::json content, nl::json parent, nl::json metadata,
                 xeus::buffer_sequence buffers);
    // Text of ranks: unlike write(), whole messages that wait for nothing.
    void publish_text(Stream stream, std::string_view text, const nl::json& parent);

    Output& output() { return output_; }
    const std::string& session() const { return session_; }

    // The interpreter has run its exit functions: sends what is left and ends the process.
    [[noreturn]] void finish();

private:
    void idle();
    void interrupt();
    Server::Hooks server_hooks();

    std::string session_;
    nl::json info_;
    ConnectionFile file_;
    Signer signer_;
    zmq::context_t shell_context_;  // two, so that a stuck main thread cannot hold up the end
    zmq::context_t control_context_;
    Iopub iopub_;
    ExitGate gate_;
    pthread_t main_;
    std::atomic<bool> in_cell_{false};
    std::atomic<bool> ready_{false};
    std::optional<Front> front_;
    std::unique_ptr<xeus::xkernel> core_;
    Server* server_ = nullptr;  // core_ owns it
    Output output_;
    InterruptWatch interrupts_;
    Control control_;
};

}  // namespace sgpu
