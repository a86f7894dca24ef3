#include "kernel/message.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace sgpu {
namespace {

constexpr std::string_view kDelimiter = "<IDS|MSG>";

std::string dump(const nl::json& json) {
    return json.dump(-1, ' ', false, nl::json::error_handler_t::replace);
}

zmq::message_t frame(std::string_view bytes) {
    return {bytes.data(), bytes.size()};
}

// How many bytes at the front stand for themselves in a JSON string and are ASCII.
std::size_t plain_length(std::string_view text) {
    constexpr std::uint64_t kEach = 0x0101010101010101;
    // Has a byte of `value` its top bit set if it was zero? A borrow can only add bytes that follow
    // one that is.
    const auto zeros = [](std::uint64_t value) { return (value - kEach) & ~value; };
    std::size_t length = 0;
    for (std::uint64_t eight = 0; length + sizeof eight <= text.size(); length += sizeof eight) {
        std::memcpy(&eight, text.data() + length, sizeof eight);
        const std::uint64_t quotes = zeros(eight ^ kEach * '"');
        const std::uint64_t backslashes = zeros(eight ^ kEach * '\\');
        const std::uint64_t controls = (eight - kEach * 0x20) & ~eight;
        if (((quotes | backslashes | controls | eight) & kEach * 0x80) != 0) break;
    }
    for (; length < text.size(); ++length) {
        const auto c = static_cast<unsigned char>(text[length]);
        if (c < 0x20 || c >= 0x80 || c == '"' || c == '\\') break;
    }
    return length;
}

// Appends what stands for an ASCII character that does not stand for itself.
void append_escaped(std::string& json, char c) {
    constexpr std::string_view kShort = "\bb\ff\nn\rr\tt\"\"\\\\";
    for (std::size_t i = 0; i < kShort.size(); i += 2) {
        if (kShort[i] != c) continue;
        json += '\\';
        json += kShort[i + 1];
        return;
    }
    constexpr std::string_view kHex = "0123456789abcdef";
    json += "\\u00";
    json += kHex[static_cast<unsigned char>(c) >> 4U];
    json += kHex[static_cast<unsigned char>(c) & 15U];
}

nl::json parse_object(const zmq::message_t& bytes, const char* what) {
    const std::string_view text = bytes.to_string_view();
    nl::json json = nl::json::parse(text.begin(), text.end());
    if (!json.is_object()) throw std::runtime_error(std::string(what) + " is not an object");
    return json;
}

}  // namespace

Signer::Signer(const std::string& scheme, std::string key) : key_(std::move(key)) {
    constexpr std::string_view kPrefix = "hmac-";
    if (scheme.starts_with(kPrefix)) {
        digest_ = EVP_get_digestbyname(scheme.substr(kPrefix.size()).c_str());
    }
    if (digest_ == nullptr && !key_.empty()) {
        throw std::runtime_error("unknown signature scheme " + scheme);
    }
}

std::string Signer::sign(const std::array<std::string_view, 4>& frames) const {
    if (key_.empty()) return "";
    std::string all;
    for (const std::string_view part : frames) all.append(part);
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int size = 0;
    HMAC(digest_, key_.data(), static_cast<int>(key_.size()),
         reinterpret_cast<const unsigned char*>(all.data()), all.size(), digest.data(), &size);
    constexpr std::string_view kHex = "0123456789abcdef";
    std::string hex;
    for (unsigned int index = 0; index < size; ++index) {
        hex += kHex[digest.at(index) >> 4U];
        hex += kHex[digest.at(index) & 15U];
    }
    return hex;
}

std::string stream_content(std::string_view name, std::string_view text) {
    std::string json = R"({"name":")";
    json.append(name).append(R"(","text":")");
    json.reserve(json.size() + text.size() + text.size() / 2);
    for (std::string_view rest = text; !rest.empty();) {
        const std::size_t plain = plain_length(rest);
        json.append(rest, 0, plain);
        rest.remove_prefix(plain);
        if (rest.empty()) break;
        if ((rest[0] & 0x80) != 0) return dump({{"name", name}, {"text", text}});
        append_escaped(json, rest[0]);
        rest.remove_prefix(1);
    }
    return json.append(R"("})");
}

Frames encode(const Signer& signer, const Message& message) {
    return encode(signer, message, dump(message.content));
}

Frames encode(const Signer& signer, const Message& message, const std::string& content) {
    const std::array<std::string, 3> heads = {dump(message.header), dump(message.parent_header),
                                              dump(message.metadata)};
    const std::array<std::string_view, 4> parts = {heads[0], heads[1], heads[2], content};
    Frames frames;
    frames.reserve(message.identities.size() + 6 + message.buffers.size());
    for (const std::string& identity : message.identities) frames.push_back(frame(identity));
    frames.push_back(frame(kDelimiter));
    frames.push_back(frame(signer.sign(parts)));
    for (const std::string_view part : parts) frames.push_back(frame(part));
    for (const auto& buffer : message.buffers) frames.emplace_back(buffer.data(), buffer.size());
    return frames;
}

Message decode(const Signer& signer, const Frames& frames) {
    Message message;
    std::size_t at = 0;
    while (at < frames.size() && frames[at].to_string_view() != kDelimiter) {
        message.identities.emplace_back(frames[at++].to_string_view());
    }
    if (frames.size() < at + 6) throw std::runtime_error("too few frames");
    const zmq::message_t* const part = &frames[at + 2];
    const std::string expected = signer.sign({part[0].to_string_view(), part[1].to_string_view(),
                                              part[2].to_string_view(), part[3].to_string_view()});
    const std::string_view given = frames[at + 1].to_string_view();
    if (!expected.empty() && (given.size() != expected.size() ||
                              CRYPTO_memcmp(given.data(), expected.data(), given.size()) != 0)) {
        throw std::runtime_error("wrong signature");
    }
    message.header = parse_object(part[0], "header");
    message.parent_header = parse_object(part[1], "parent header");
    message.metadata = parse_object(part[2], "metadata");
    message.content = parse_object(part[3], "content");
    for (std::size_t index = at + 6; index < frames.size(); ++index) {
        const auto* const data = frames[index].data<char>();
        message.buffers.emplace_back(data, data + frames[index].size());
    }
    if (message.type().empty() || message.id().empty()) throw std::runtime_error("no type or id");
    return message;
}

nl::json make_header(const std::string& type, const std::string& session) {
    return xeus::make_header(type, "kernel", session);
}

Frames receive(zmq::socket_t& socket) {
    Frames frames;
    do {
        zmq::message_t part;
        const int flags = frames.empty() ? ZMQ_DONTWAIT : 0;
        int received = -1;
        do {
            received = zmq_msg_recv(part.handle(), socket.handle(), flags);
        } while (received < 0 && errno == EINTR);
        if (received < 0) return {};
        frames.push_back(std::move(part));
    } while (frames.back().more());
    return frames;
}

void send(zmq::socket_t& socket, Frames frames) {
    for (std::size_t index = 0; index < frames.size(); ++index) {
        const int flags = index + 1 < frames.size() ? ZMQ_SNDMORE : 0;
        while (zmq_msg_send(frames[index].handle(), socket.handle(), flags) < 0) {
            if (errno != EINTR) throw zmq::error_t();
        }
    }
}

}  // namespace sgpu
