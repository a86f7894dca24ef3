#include "kernel/server.h"

#include <poll.h>

#include <array>
#include <set>
#include <span>

#include "kernel/signal_window.h"

namespace sgpu {
namespace {

constexpr std::string_view kRequest = "_request";
constexpr long kOnTheirWayMs = 10;

// What xeus's core knows; it writes to stderr, that is into a cell, about anything else.
bool is_for_core(const std::string& type) {
    static const std::set<std::string> types = {"execute_request",     "complete_request",
                                                "inspect_request",     "history_request",
                                                "is_complete_request", "kernel_info_request"};
    return types.contains(type);
}

nl::json error_content(const std::string& name, const std::string& value) {
    return {{"status", "error"},
            {"ename", name},
            {"evalue", value},
            {"traceback", nl::json::array({name + ": " + value})}};
}

bool flag(const nl::json& content, const char* name, bool otherwise) {
    const auto found = content.find(name);
    return found != content.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

bool has_message(const zmq::socket_t& socket) {
    return (socket.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0;
}

void poll_until(std::span<pollfd> fds, std::optional<std::chrono::milliseconds> timeout,
                const sigset_t& let_in) {
    timespec limit{};
    if (timeout) {
        limit.tv_sec = static_cast<time_t>(timeout->count() / 1000);
        limit.tv_nsec = static_cast<long>(timeout->count() % 1000) * 1'000'000;
    }
    ::ppoll(fds.data(), fds.size(), timeout ? &limit : nullptr, &let_in);
}

}  // namespace

Server::Server(zmq::context_t& context, const ConnectionFile& file, const Signer& signer,
               Iopub& iopub, Hooks hooks)
    : signer_(signer),
      iopub_(iopub),
      hooks_(std::move(hooks)),
      shell_(context, zmq::socket_type::router),
      stdin_(context, zmq::socket_type::router) {
    for (auto* const socket : {&shell_, &stdin_}) {
        socket->set(zmq::sockopt::linger, 500);
        socket->set(zmq::sockopt::sndhwm, 0);  // a reply is never dropped
        socket->set(zmq::sockopt::rcvhwm, 0);
        socket->set(zmq::sockopt::router_handover, true);  // a client that came back takes over
    }
    file.bind(shell_, file.shell_port);
    file.bind(stdin_, file.stdin_port);
}

// ZeroMQ's descriptor tells only of changes, so the socket itself is asked first.
bool Server::wait(std::optional<std::chrono::milliseconds> timeout, int other_fd,
                  const sigset_t& let_in) {
    if (!queue_.empty() || has_message(shell_)) return true;
    std::array<pollfd, 3> fds = {{{shell_.get(zmq::sockopt::fd), POLLIN, 0},
                                  {wake_.fd(), POLLIN, 0},
                                  {other_fd, POLLIN, 0}}};
    poll_until(fds, timeout, let_in);
    const bool woken = wake_.take();
    return woken || has_message(shell_);
}

void Server::start_impl(xeus::xpub_message message) {
    iopub_.publish("status", nl::json::object(), message.content());
    while (!hooks_.stopping()) {
        hooks_.idle();
        if (!hooks_.stopping()) handle_request();
    }
}

std::optional<Message> Server::receive_request() {
    for (Frames frames = receive(shell_); !frames.empty(); frames = receive(shell_)) {
        try {
            return decode(signer_, frames);
        } catch (const std::exception&) {
            // Not a message of a client that knows our key: drop it, take the next.
        }
    }
    return {};
}

void Server::handle_request() {
    if (queue_.empty()) {
        std::optional<Message> message = receive_request();
        if (!message) return;
        queue_.push_back({std::move(*message)});
    }
    Queued next = std::move(queue_.front());
    queue_.pop_front();
    handle(std::move(next));
}

void Server::handle(Queued queued) {
    request_ = std::move(queued.message);
    replied_ = false;
    const std::string type = request_.type();
    if (is_for_core(type) && !queued.aborted) {
        forward_to_core();
    } else {
        iopub_.publish_status("busy", request_.header);
        if (queued.aborted) {
            reply("execute_reply", {{"status", "aborted"}});
        } else if (type.starts_with("comm_")) {
            handle_comm();
        } else if (type == "shutdown_request") {
            const bool restart = flag(request_.content, "restart", false);
            reply("shutdown_reply", {{"status", "ok"}, {"restart", restart}});
            hooks_.stop(restart);
        }
        hooks_.before_reply();
        iopub_.publish_status("idle", request_.header);
    }
    if (!replied_ && type.ends_with(kRequest)) {
        reply(reply_type(),
              error_content("NotImplementedError", "the kernel cannot handle this " + type));
    }
}

void Server::forward_to_core() {
    // Absent means true in the protocol, false in xeus.
    if (request_.type() == "execute_request" && !request_.content.contains("stop_on_error")) {
        request_.content["stop_on_error"] = true;
    }
    try {
        notify_shell_listener(xeus::xmessage(request_.identities, request_.header,
                                             request_.parent_header, request_.metadata,
                                             request_.content, request_.buffers));
    } catch (const std::exception& error) {
        if (!replied_) reply(reply_type(), error_content("KernelError", error.what()));
        iopub_.publish_status("idle", request_.header);
    }
}

void Server::handle_comm() {
    nl::json content;
    try {
        content = hooks_.comm(request_);
    } catch (const std::exception& error) {
        content = error_content("KernelError", error.what());
    }
    if (request_.type().ends_with(kRequest)) reply(reply_type(), std::move(content));
}

void Server::send_shell_impl(xeus::xmessage message) {
    nl::json content = message.content();
    if (const auto count = content.find(kCountKey); count != content.end()) {
        content["execution_count"] = *count;
        content.erase(kCountKey);
    }
    const auto status = content.find("status");
    const bool failed = status != content.end() && *status == "error";
    if (failed && request_.type() == "execute_request" &&
        flag(request_.content, "stop_on_error", true) && !flag(request_.content, "silent", false)) {
        abort_queued_cells();
    }
    reply(message.header().value("msg_type", reply_type()), std::move(content), message.metadata());
}

// Called before the error is told: what came before that was sent without knowing of it, and may
// still be on its way where the machine is busy.
void Server::abort_queued_cells() {
    const auto receive_all = [this] {
        while (auto message = receive_request()) queue_.push_back({std::move(*message)});
    };
    receive_all();
    zmq_pollitem_t item{shell_.handle(), 0, ZMQ_POLLIN, 0};
    if (zmq_poll(&item, 1, kOnTheirWayMs) > 0) receive_all();
    for (Queued& queued : queue_) {
        if (queued.message.type() == "execute_request") queued.aborted = true;
    }
}

void Server::reply(const std::string& type, nl::json content, nl::json metadata) {
    hooks_.before_reply();
    replied_ = true;
    send(shell_, encode(signer_, {.identities = request_.identities,
                                  .header = make_header(type, iopub_.session()),
                                  .parent_header = request_.header,
                                  .metadata = std::move(metadata),
                                  .content = std::move(content),
                                  .buffers = {}}));
}

std::string Server::reply_type() const {
    const std::string type = request_.type();
    return type.substr(0, type.rfind('_')) + "_reply";
}

void Server::publish_impl(xeus::xpub_message message, xeus::channel) {
    const std::string type = message.header().value("msg_type", "");
    if (type == "execute_input") return;  // the cell publishes its own, with IPython's count
    if (type == "status") hooks_.before_reply();
    iopub_.publish(type, message.parent_header(), message.content(), message.metadata(),
                   message.buffers());
}

std::optional<std::string> Server::ask(const std::string& prompt, bool password,
                                       const std::function<bool()>& interrupted) {
    while (!receive(stdin_).empty()) {
    }
    const nl::json header = make_header("input_request", iopub_.session());
    const Message question{.identities = request_.identities,
                           .header = header,
                           .parent_header = request_.header,
                           .metadata = nl::json::object(),
                           .content = {{"prompt", prompt}, {"password", password}},
                           .buffers = {}};
    send(stdin_, encode(signer_, question));
    const AllSignalsBlocked blocked;
    while (!interrupted()) {
        if (auto answer = receive_answer(question.id())) return answer;
        std::array<pollfd, 1> fds = {{{stdin_.get(zmq::sockopt::fd), POLLIN, 0}}};
        poll_until(fds, {}, blocked.old_mask());
    }
    return {};
}

std::optional<std::string> Server::receive_answer(const std::string& question) {
    for (Frames frames = receive(stdin_); !frames.empty(); frames = receive(stdin_)) {
        try {
            const Message answer = decode(signer_, frames);
            // Front ends that say which question they answer may answer one that was given up.
            const std::string answered = answer.parent_header.value("msg_id", question);
            if (answer.type() != "input_reply" || answered != question) continue;
            return answer.content.at("value").get<std::string>();
        } catch (const std::exception&) {
            // Not an answer: wait for one.
        }
    }
    return {};
}

void Server::close() {
    shell_.close();
    stdin_.close();
}

}  // namespace sgpu
