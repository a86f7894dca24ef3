// iopub.h: the socket on which everything is published, from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "kernel/connection_file.h"
#include "kernel/message.h"
#include "runtime/stream.h"

namespace sgpu {

// Bytes handed to ZeroMQ and not on the network yet. Shared with ZeroMQ's I/O thread, which gives
// bytes back after Iopub may be gone.
class BytesInFlight {
public:
    void add(std::size_t bytes);
    void remove(std::size_t bytes);

    // Waits until fewer than `limit` bytes are under way or `cancelled` is set. False if neither
    // happened within `patience`.
    bool wait_below(std::size_t limit, std::chrono::milliseconds patience,
                    const std::atomic<bool>& cancelled);
    void wake() { changed_.notify_all(); }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::size_t bytes_ = 0;
};

// Publishes under a lock, with the parent that the message carries, so that no thread's output can
// mix with another's or go to the wrong cell.
//
// ZeroMQ drops messages, the idle status too, once a slow client is 1,000 behind, or fills memory
// if told not to. Here the publisher waits for the client instead, like a program writing into a
// terminal. A client that takes nothing for kPatience is given up: messages it has no room for are
// dropped for it (not for others) during kLeniency, and nobody waits.
//
// Threads: any. The GIL must not be held in publish(), which may block for kPatience.
class Iopub {
public:
    static constexpr std::chrono::milliseconds kPatience{2000};
    static constexpr std::chrono::seconds kLeniency{60};
    static constexpr int kMaxMessages = 20'000;
    static constexpr std::size_t kMaxBytes = std::size_t{32} << 20U;

    // Errors: throws zmq::error_t if the port is taken.
    Iopub(zmq::context_t& context, const ConnectionFile& file, const Signer& signer,
          std::string session);

    // Publishes a message of `type` with a fresh header.
    void publish(const std::string& type, nl::json parent, nl::json content,
                 nl::json metadata = nl::json::object(), xeus::buffer_sequence buffers = {});

    // Publishes a message that has its header. Its identities are replaced by our topic.
    void publish(Message message);

    // Publishes text. Quicker than publish() by far.
    void publish_text(Stream stream, std::string_view text, const nl::json& parent);

    void publish_status(const std::string& state, const nl::json& parent);

    // No publisher waits for a client any more. For the end of the process.
    void hurry();

    // Later messages are dropped. What was published before is sent while the context ends.
    void close();

    const std::string& session() const { return session_; }

private:
    void send_all(Frames frames);
    bool lenient() const { return std::chrono::steady_clock::now() < lenient_until_; }
    void give_up_on_slow_clients();
    void send_patiently(zmq::message_t& part, int flags);

    const Signer& signer_;
    std::string session_;
    std::atomic<bool> hurried_{false};
    // Two owners: see BytesInFlight.
    std::shared_ptr<BytesInFlight> in_flight_ = std::make_shared<BytesInFlight>();
    std::mutex mutex_;  // guards all below
    zmq::socket_t socket_;
    std::chrono::steady_clock::time_point lenient_until_{};
    bool closed_ = false;
};

}  // namespace sgpu
