// wire.h: the messages between the pool and its ranks.
//
// wire.md is the specification; this header is its C++ form. Both change in one commit, with a
// golden line for each message in tests/wire/. Layers above see only these structs; only wire.cpp
// knows bytes.
#pragma once

#include <csignal>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/result.h"
#include "runtime/stream.h"
#include "runtime/unique_fd.h"

namespace sgpu {

// Raised when an old peer would misread a new message.
inline constexpr std::uint8_t kWireVersion = 1;

// What a rank ends itself by if its end of the channel is gone.
inline constexpr int kChannelLost = SIGSTKFLT;

struct Execute {
    CallId call = 0;
    int rank = 0;
    int world = 0;
    std::string mode;  // "function" or "cell"
};
struct Interrupt {
    CallId call = 0;
    std::string reason;      // "stop", "peer" or "deadline"
    std::string cut = "no";  // shut the sockets of collectives: "no", "stuck" or "always"
};
struct Ping {
    std::uint64_t token = 0;
};
struct Dump {
    std::uint64_t token = 0;
    bool stack = true;  // else only the collectives, without disturbing the main thread
};
struct Quit {};

struct Hello {  // NOLINT(bugprone-exception-escape): moving a JSON value throws nothing
    std::string key;
    int pid = 0;
    nlohmann::json service = nullptr;
};
struct Done {
    CallId call = 0;
    bool ok = false;
    std::uint32_t mark = 0;
    std::int64_t raised_ns = 0;  // CLOCK_MONOTONIC, one clock for all processes; 0 if ok
    std::int64_t began_ns = 0;   // by the same clock: the last time that user code began
    std::map<std::string, double> startup = {};  // seconds, by what was begun in user code: "NCCL"
};
struct Pong {
    std::uint64_t token = 0;
    CallId busy = 0;
    std::string main;
};
struct Stack {
    std::uint64_t token = 0;
    std::string text;
    std::string main;
    std::string collectives;
};
struct Display {
    CallId call = 0;
    std::uint32_t mark = 0;
    std::string type;
};

struct Warm {
    int device = 0;
    bool narrowed = false;  // CUDA_VISIBLE_DEVICES is set, to:
    std::string visible;
};

// The kind on the wire is the place in this list.
using Body =
    std::variant<Execute, Interrupt, Ping, Dump, Quit, Hello, Done, Pong, Stack, Display, Warm>;

struct Message {
    Body body;
    std::vector<std::string> frames;
    UniqueFd buffer;  // a memfd, or none
};

// The bytes of a message; `buffer` travels beside them. REQUIRES: the whole fits a packet.
std::string encode(const Body& body, const std::vector<std::string>& frames = {});

// Errors: Errc::bad_message if the bytes break wire.md in any way. Never throws: they come from
// another process. The message's buffer is empty.
Result<Message> decode(std::string_view bytes);

}  // namespace sgpu
