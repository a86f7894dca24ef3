#include "runtime/wire.h"

#include <cstring>

namespace sgpu {

using nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Execute, call, rank, world, mode)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Interrupt, call, reason, cut)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Ping, token)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Dump, token, stack)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Hello, key, pid, service)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Done, call, ok, mark, raised_ns, began_ns, startup)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Pong, token, busy, main)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Stack, token, text, main, collectives)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Display, call, mark, type)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Warm, device, narrowed, visible)
static void to_json(json& j, const Quit&) {
    j = json::object();
}
static void from_json(const json&, Quit&) {}

namespace {

constexpr std::size_t kPrefix = 4;
constexpr int kMaxDepth = 64;

void put_u32(std::string& out, std::size_t value) {
    const auto v = static_cast<std::uint32_t>(value);
    out.append(reinterpret_cast<const char*>(&v), sizeof v);
}

bool take_u32(std::string_view& in, std::uint32_t& value) {
    if (in.size() < sizeof value) return false;
    std::memcpy(&value, in.data(), sizeof value);
    in.remove_prefix(sizeof value);
    return true;
}

template <std::size_t Index = 0>
bool parse_body(std::size_t kind, const json& head, Body& body) {
    if constexpr (Index < std::variant_size_v<Body>) {
        if (kind != Index) return parse_body<Index + 1>(kind, head, body);
        body = head.get<std::variant_alternative_t<Index, Body>>();
        return true;
    }
    return false;
}

Error bad(const char* what) {
    return {Errc::bad_message, std::string("message: ") + what, 0};
}

// Copying and writing a JSON value recurse, so one that is nested deeply would end the stack.
bool too_deep(std::string_view json_text) {
    int depth = 0;
    bool in_string = false;
    for (std::size_t i = 0; i < json_text.size(); ++i) {
        const char c = json_text[i];
        if (c == '"') in_string = !in_string;
        if (in_string) {
            if (c == '\\') ++i;
            continue;
        }
        if (c == '[' || c == '{') ++depth;
        if (c == ']' || c == '}') --depth;
        if (depth > kMaxDepth) return true;
    }
    return false;
}

// The lengths of all parts, if they add up to what follows them.
Result<std::vector<std::uint32_t>> take_lengths(std::string_view& in) {
    std::uint32_t count = 0;
    if (!take_u32(in, count) || count == 0) return bad("no parts");
    if (count > in.size() / sizeof(std::uint32_t)) return bad("more parts than bytes");
    std::vector<std::uint32_t> lengths(count);
    std::uint64_t total = 0;
    for (auto& length : lengths) {
        (void)take_u32(in, length);
        total += length;
    }
    if (total != in.size()) return bad("parts and packet differ in length");
    return lengths;
}

}  // namespace

std::string encode(const Body& body, const std::vector<std::string>& frames) {
    const json head = std::visit([](const auto& b) { return json(b); }, body);
    const std::string text = head.dump(-1, ' ', false, json::error_handler_t::replace);
    std::string out = {'S', 'G', static_cast<char>(kWireVersion), static_cast<char>(body.index())};
    put_u32(out, 1 + frames.size());
    put_u32(out, text.size());
    for (const auto& frame : frames) put_u32(out, frame.size());
    out += text;
    for (const auto& frame : frames) out += frame;
    return out;
}

Result<Message> decode(std::string_view bytes) {
    if (bytes.size() < kPrefix || bytes[0] != 'S' || bytes[1] != 'G') return bad("not one of ours");
    if (static_cast<std::uint8_t>(bytes[2]) != kWireVersion) return bad("another version");
    const auto kind = static_cast<std::uint8_t>(bytes[3]);
    bytes.remove_prefix(kPrefix);
    const auto lengths = take_lengths(bytes);
    if (!lengths) return lengths.error();
    const auto text = bytes.substr(0, lengths.value()[0]);
    if (too_deep(text)) return bad("its body is nested too deeply");
    const json head = json::parse(text, nullptr, false);
    if (!head.is_object()) return bad("its body is no JSON object");
    Message message;
    try {
        if (!parse_body(kind, head, message.body)) return bad("unknown kind");
    } catch (const json::exception&) {
        return bad("a field of another type");
    }
    bytes.remove_prefix(lengths.value()[0]);
    for (std::size_t i = 1; i < lengths.value().size(); ++i) {
        message.frames.emplace_back(bytes.substr(0, lengths.value()[i]));
        bytes.remove_prefix(lengths.value()[i]);
    }
    return message;
}

}  // namespace sgpu
