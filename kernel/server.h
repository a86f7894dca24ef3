// server.h: the shell and stdin channels, as the server of xeus, driven from the main thread.
#pragma once

#include <chrono>
#include <csignal>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <xeus/xcontrol_messenger.hpp>

#include "kernel/compat.h"
#include "kernel/connection_file.h"
#include "kernel/iopub.h"
#include "kernel/message.h"
#include "runtime/event_fd.h"

namespace sgpu {

// Receives requests, lets xeus's core parse them and form replies, and sends those. Why not one of
// xeus's own servers: xeus 2.4's owns the main thread (no asyncio between cells), ends on every
// signal, drops output at 1,000 messages, hands a late answer to one input() to the next, leaves
// requests that it cannot handle unanswered, and cannot be told to abort queued cells.
//
// Each request gets exactly one reply. Between the reply and its request's output there is order:
// all output is published before the reply is sent.
//
// Threads: all on the main thread, wake() on any. The GIL must not be held in handle_request() and
// in start(), which xeus calls.
class Server final : public xeus::xserver {
public:
    // Where a reply says which execution_count it has: xeus counts cells in its own way.
    static constexpr const char* kCountKey = "sgpu_execution_count";

    struct Hooks {
        std::function<void()> idle;      // wait() until a request is there; the main loop
        std::function<bool()> stopping;  // the process is asked to end
        std::function<void(bool restart)> stop;
        std::function<void()> before_reply;  // publish all output
        // comm_open, comm_msg, comm_close; and comm_info_request, whose reply it returns.
        std::function<nl::json(const Message&)> comm;
    };

    // Errors: throws zmq::error_t if a port is taken.
    Server(zmq::context_t& context, const ConnectionFile& file, const Signer& signer, Iopub& iopub,
           Hooks hooks);

    // Waits for a request or a wake(), for events of `other_fd` (-1: none), or a signal that
    // `let_in` does not block. True if handle_request() has something to do.
    bool wait(std::optional<std::chrono::milliseconds> timeout, int other_fd,
              const sigset_t& let_in);

    // Makes wait() return true once.
    void wake() { wake_.notify(); }

    // What the client of the running cell typed; empty if `interrupted` returned true after a
    // signal. Answers to earlier questions are skipped.
    std::optional<std::string> ask(const std::string& prompt, bool password,
                                   const std::function<bool()>& interrupted);

    // The request that is being handled, or the last one.
    const Message& request() const { return request_; }

    // Sends what is left and closes both sockets. Nothing may be called afterwards.
    void close();

private:
    xeus::xcontrol_messenger& get_control_messenger_impl() override { return messenger_; }
    void send_shell_impl(xeus::xmessage message) override;
    void send_control_impl(xeus::xmessage) override {}  // see Control
    void send_stdin_impl(xeus::xmessage) override {}    // see ask()
    void publish_impl(xeus::xpub_message message, xeus::channel) override;
    void start_impl(xeus::xpub_message message) override;
    void abort_queue_impl(const listener&, long) override {}  // done when the reply was sent
    void stop_impl() override {}
    void update_config_impl(compat::KernelConfig&) const override {}

    struct Queued {
        Message message;
        bool aborted = false;
    };

    // xeus wants one; only its debugger would use it.
    class NoMessenger final : public xeus::xcontrol_messenger {
        nl::json send_to_shell_impl(const nl::json&) override { return nl::json::object(); }
    };

    std::optional<Message> receive_request();
    void handle_request();
    void handle(Queued queued);
    void handle_comm();
    void forward_to_core();
    void abort_queued_cells();
    void reply(const std::string& type, nl::json content, nl::json metadata = nl::json::object());
    std::string reply_type() const;
    std::optional<std::string> receive_answer(const std::string& question);

    const Signer& signer_;
    Iopub& iopub_;
    Hooks hooks_;
    zmq::socket_t shell_;
    zmq::socket_t stdin_;
    EventFd wake_;
    NoMessenger messenger_;
    std::deque<Queued> queue_;
    Message request_;
    bool replied_ = false;
};

}  // namespace sgpu
