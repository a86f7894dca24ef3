#include "kernel/iopub.h"

#include <cerrno>
#include <utility>

namespace sgpu {
namespace {

constexpr std::size_t kWorthCounting = 4096;

// Keeps a frame alive until ZeroMQ has sent it to all clients.
struct CountedFrame {
    zmq::message_t original;
    std::shared_ptr<BytesInFlight> in_flight;

    static void release(void* /*data*/, void* hint) {
        const std::unique_ptr<CountedFrame> self(static_cast<CountedFrame*>(hint));
        self->in_flight->remove(self->original.size());
    }
};

zmq::message_t counted(zmq::message_t frame, const std::shared_ptr<BytesInFlight>& in_flight) {
    in_flight->add(frame.size());
    auto holder = std::make_unique<CountedFrame>(CountedFrame{std::move(frame), in_flight});
    void* const data = holder->original.data();
    const std::size_t size = holder->original.size();
    return {data, size, &CountedFrame::release, holder.release()};
}

}  // namespace

void BytesInFlight::add(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes_ += bytes;
}

void BytesInFlight::remove(std::size_t bytes) {
    {
        const std::lock_guard lock(mutex_);
        bytes_ -= bytes;
    }
    changed_.notify_all();
}

bool BytesInFlight::wait_below(std::size_t limit, std::chrono::milliseconds patience,
                               const std::atomic<bool>& cancelled) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return bytes_ < limit || cancelled; });
}

Iopub::Iopub(zmq::context_t& context, const ConnectionFile& file, const Signer& signer,
             std::string session)
    : signer_(signer), session_(std::move(session)), socket_(context, zmq::socket_type::pub) {
    socket_.set(zmq::sockopt::sndhwm, kMaxMessages);
    socket_.set(zmq::sockopt::sndtimeo, static_cast<int>(kPatience.count()));
    socket_.set(zmq::sockopt::xpub_nodrop, true);
    file.bind(socket_, file.iopub_port);
}

void Iopub::publish(const std::string& type, nl::json parent, nl::json content, nl::json metadata,
                    xeus::buffer_sequence buffers) {
    publish({.identities = {},
             .header = make_header(type, session_),
             .parent_header = std::move(parent),
             .metadata = std::move(metadata),
             .content = std::move(content),
             .buffers = std::move(buffers)});
}

void Iopub::publish(Message message) {
    message.identities = {"kernel." + session_ + "." + message.type()};
    send_all(encode(signer_, message));
}

void Iopub::publish_text(Stream stream, std::string_view text, const nl::json& parent) {
    Message message{.identities = {"kernel." + session_ + ".stream"},
                    .header = make_header("stream", session_),
                    .parent_header = parent,
                    .metadata = nl::json::object(),
                    .content = {},
                    .buffers = {}};
    const char* const name = stream == Stream::out ? "stdout" : "stderr";
    send_all(encode(signer_, message, stream_content(name, text)));
}

void Iopub::send_all(Frames frames) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    if (!lenient() && !in_flight_->wait_below(kMaxBytes, kPatience, hurried_)) {
        give_up_on_slow_clients();
    }
    for (std::size_t index = 0; index < frames.size(); ++index) {
        zmq::message_t& part = frames[index];
        if (part.size() > kWorthCounting) part = counted(std::move(part), in_flight_);
        send_patiently(part, index + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    }
}

void Iopub::publish_status(const std::string& state, const nl::json& parent) {
    publish("status", parent, {{"execution_state", state}});
}

void Iopub::hurry() {
    hurried_ = true;
    in_flight_->wake();
}

void Iopub::close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    socket_.set(zmq::sockopt::linger, 500);
    socket_.close();
}

// REQUIRES: mutex_ held.
void Iopub::give_up_on_slow_clients() {
    lenient_until_ = std::chrono::steady_clock::now() + kLeniency;
    socket_.set(zmq::sockopt::xpub_nodrop, false);
}

// REQUIRES: mutex_ held. Only the first part of a message can find no room.
void Iopub::send_patiently(zmq::message_t& part, int flags) {
    if (!lenient()) socket_.set(zmq::sockopt::xpub_nodrop, true);
    while (zmq_msg_send(part.handle(), socket_.handle(), flags) < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return;
        give_up_on_slow_clients();
    }
}

}  // namespace sgpu
