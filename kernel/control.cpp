#include "kernel/control.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <exception>

#include "kernel/signal_window.h"

namespace sgpu {
namespace {

constexpr long kParentPollMs = 1000;  // where the parent's end has no descriptor
constexpr std::string_view kRequest = "_request";

}  // namespace

Control::Control(zmq::context_t& context, const ConnectionFile& file, const Signer& signer,
                 Iopub& iopub, ExitGate& gate, InterruptWatch& interrupts, Hooks hooks)
    : context_(context),
      signer_(signer),
      iopub_(iopub),
      gate_(gate),
      interrupts_(interrupts),
      hooks_(std::move(hooks)),
      control_(context, zmq::socket_type::router),
      heartbeat_(context, zmq::socket_type::rep) {
    control_.set(zmq::sockopt::linger, 500);
    heartbeat_.set(zmq::sockopt::linger, 0);
    file.bind(control_, file.control_port);
    file.bind(heartbeat_, file.heartbeat_port);
}

void Control::start() {
    const AllSignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
    thread_.detach();  // it ends the process
}

void Control::run() {
    std::array<zmq_pollitem_t, 5> items = {{{control_.handle(), 0, ZMQ_POLLIN, 0},
                                            {heartbeat_.handle(), 0, ZMQ_POLLIN, 0},
                                            {nullptr, finish_.fd(), ZMQ_POLLIN, 0},
                                            {nullptr, interrupts_.fd(), ZMQ_POLLIN, 0},
                                            {nullptr, parent_.fd(), ZMQ_POLLIN, 0}}};
    const int count = parent_.fd() >= 0 ? 5 : 4;
    const long longest = count == 5 ? -1 : kParentPollMs;
    while (true) {
        const long nudge = interrupts_.look();
        zmq_poll(items.data(), count, nudge < 0 ? longest : nudge);
        if (parent_.parent_gone()) ::_exit(1);
        if (finish_.take()) end_process();
        answer_heartbeat();
        handle_control();
    }
}

void Control::answer_heartbeat() {
    Frames frames = receive(heartbeat_);
    if (!frames.empty()) send(heartbeat_, std::move(frames));
}

// Handles all that is there.
void Control::handle_control() {
    for (Frames frames = receive(control_); !frames.empty(); frames = receive(control_)) {
        try {
            dispatch(decode(signer_, frames));
        } catch (const std::exception&) {
            // Bytes from outside that are no message of ours: there is nobody to tell.
        }
    }
}

void Control::dispatch(const Message& request) {
    const std::string type = request.type();
    if (!type.ends_with(kRequest)) return;
    // First the deed, then what is said of it: publishing may have to wait for a slow client.
    if (type == "interrupt_request") hooks_.interrupt();
    if (type == "shutdown_request") iopub_.hurry();
    iopub_.publish_status("busy", request.header);
    const std::string reply = type.substr(0, type.size() - kRequest.size()) + "_reply";
    Message message{.identities = request.identities,
                    .header = make_header(reply, iopub_.session()),
                    .parent_header = request.header,
                    .metadata = nl::json::object(),
                    .content = reply_to(request),
                    .buffers = {}};
    send(control_, encode(signer_, message));
    if (type == "shutdown_request") iopub_.publish(reply, request.header, message.content);
    iopub_.publish_status("idle", request.header);
    if (type != "shutdown_request") return;
    const auto restart = request.content.find("restart");
    gate_.request(restart != request.content.end() && *restart == true);
    hooks_.interrupt();
    hooks_.wake_main();
    end_process();
}

nl::json Control::reply_to(const Message& request) {
    const std::string type = request.type();
    if (type == "kernel_info_request") return hooks_.kernel_info();
    if (type == "interrupt_request") return {{"status", "ok"}};
    if (type == "shutdown_request") {
        const auto restart = request.content.find("restart");
        return {{"status", "ok"},
                {"restart", restart != request.content.end() && *restart == true}};
    }
    return {{"status", "error"},
            {"ename", "NotImplementedError"},
            {"evalue", type + " is not a request that this kernel knows on its control channel"},
            {"traceback", nl::json::array()}};
}

void Control::end_process() {
    gate_.wait_for_main();
    iopub_.close();
    control_.close();
    heartbeat_.close();
    context_.close();  // sends what is left, for as long as the sockets' linger says
    ::_exit(0);
}

}  // namespace sgpu
