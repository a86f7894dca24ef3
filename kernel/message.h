// message.h: Jupyter messages and their form on ZeroMQ (protocol 5.3).
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>
#include <xeus/xmessage.hpp>
#include <zmq.hpp>

struct evp_md_st;  // EVP_MD of OpenSSL

namespace sgpu {

namespace nl = nlohmann;

struct Message {
    std::vector<std::string> identities;  // the client's route; the topic for iopub
    nl::json header = nl::json::object();
    nl::json parent_header = nl::json::object();
    nl::json metadata = nl::json::object();
    nl::json content = nl::json::object();
    xeus::buffer_sequence buffers;

    std::string type() const { return header.at("msg_type").get<std::string>(); }
    std::string id() const { return header.at("msg_id").get<std::string>(); }
};

// Signs messages with the key of the connection file; an empty key means no signatures.
//
// Threads: any.
class Signer {
public:
    // Errors: throws std::runtime_error if the scheme is not hmac-<digest OpenSSL knows>.
    Signer(const std::string& scheme, std::string key);

    // Hex digest of the four JSON frames, or "" without a key.
    std::string sign(const std::array<std::string_view, 4>& frames) const;

private:
    const evp_md_st* digest_ = nullptr;
    std::string key_;
};

using Frames = std::vector<zmq::message_t>;

// Text that is not UTF-8 is replaced, never refused.
Frames encode(const Signer& signer, const Message& message);
// The same with a content that is JSON already; message.content is not looked at.
Frames encode(const Signer& signer, const Message& message, const std::string& content);

// The content of a stream message as JSON, invalid UTF-8 replaced. Plain ASCII, which floods are,
// takes a tenth of the time that a JSON library needs.
std::string stream_content(std::string_view name, std::string_view text);

// Errors: throws std::runtime_error on a wrong signature, on JSON that does not parse, and on a
// header without msg_id and msg_type. The bytes come from outside: drop the message, go on.
Message decode(const Signer& signer, const Frames& frames);

// A header of our own, with a fresh msg_id.
nl::json make_header(const std::string& type, const std::string& session);

// Receives one whole message without blocking; empty if there is none.
Frames receive(zmq::socket_t& socket);

// Errors: throws zmq::error_t; retried by itself where a signal came in between.
void send(zmq::socket_t& socket, Frames frames);

}  // namespace sgpu
