#include "runtime/byte_decoder.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <utility>

namespace sgpu {
namespace {

using Kind = Token::Kind;

constexpr char kEscape = '\x1b';
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr int kFarthestUp = 1000;

// Bytes that stand for themselves: printable ASCII and the tab.
constexpr auto kPlain = [] {
    std::array<bool, 256> plain{};
    for (std::size_t c = 0x20; c < 0x7f; ++c) plain[c] = true;
    plain['\t'] = true;
    return plain;
}();

bool is_plain(char c) {
    return kPlain[static_cast<unsigned char>(c)];
}
bool between(char c, int low, int high) {
    return static_cast<unsigned char>(c) >= low && static_cast<unsigned char>(c) <= high;
}

struct CharScan {
    enum class Is { whole, cut, broken };
    Is is = Is::broken;
    std::size_t length = 1;  // bytes that belong together
};

// Looks at the character that begins with a byte above 0x7f (Unicode 15, table 3-7).
CharScan scan_char(std::string_view bytes) {
    const auto lead = static_cast<unsigned char>(bytes[0]);
    std::size_t need = 0;
    if (lead >= 0xC2 && lead <= 0xDF) need = 2;
    if (lead >= 0xE0 && lead <= 0xEF) need = 3;
    if (lead >= 0xF0 && lead <= 0xF4) need = 4;
    if (need == 0) return {};
    for (std::size_t i = 1; i < need; ++i) {
        if (i == bytes.size()) return {CharScan::Is::cut, i};
        int low = 0x80;
        int high = 0xBF;
        if (i == 1 && lead == 0xE0) low = 0xA0;
        if (i == 1 && lead == 0xED) high = 0x9F;
        if (i == 1 && lead == 0xF0) low = 0x90;
        if (i == 1 && lead == 0xF4) high = 0x8F;
        if (!between(bytes[i], low, high)) return {CharScan::Is::broken, i};
    }
    return {CharScan::Is::whole, need};
}

// The bytes at the front, eight at a time, that are printable ASCII: a carry or a borrow can only
// come from a byte that is none.
std::size_t printable_length(std::string_view bytes) {
    constexpr std::uint64_t kEach = 0x0101010101010101;
    std::size_t length = 0;
    for (std::uint64_t eight = 0; length + sizeof eight <= bytes.size(); length += sizeof eight) {
        std::memcpy(&eight, bytes.data() + length, sizeof eight);
        const std::uint64_t below_space = eight - kEach * 0x20;
        const std::uint64_t above_tilde = eight + kEach;
        if (((below_space | above_tilde | eight) & kEach * 0x80) != 0) break;
    }
    return length;
}

std::size_t text_length(std::string_view bytes) {
    std::size_t length = printable_length(bytes);
    while (length < bytes.size()) {
        if (is_plain(bytes[length])) {
            ++length;
            continue;
        }
        if (!between(bytes[length], 0x80, 0xFF)) break;
        const CharScan scan = scan_char(bytes.substr(length));
        if (scan.is != CharScan::Is::whole) break;
        length += scan.length;
    }
    return length;
}

// U+2400 and what follows are pictures of the control characters, U+2421 that of delete.
std::string picture(char control) {
    const int place = control == 0x7f ? 0x21 : static_cast<unsigned char>(control);
    return {'\xE2', '\x90', static_cast<char>(0x80 + place)};
}

}  // namespace

Token ByteDecoder::next(std::string_view& bytes) {
    while (!bytes.empty()) {
        Token token;
        if (!pending_.empty()) {
            token = pending_[0] == kEscape ? continue_escape(bytes) : continue_char(bytes);
        } else if (const std::size_t length = text_length(bytes); length > 0) {
            token = {Kind::text, bytes.substr(0, length)};
            bytes.remove_prefix(length);
        } else {
            token = special(bytes);
        }
        if (token.kind != Kind::none) return token;
    }
    return {};
}

std::string_view ByteDecoder::finish() {
    if (pending_.empty()) return {};
    if (pending_[0] == kEscape) return pending_as_text().text;
    pending_.clear();
    return kReplacement;
}

Token ByteDecoder::special(std::string_view& bytes) {
    const char c = bytes[0];
    if (between(c, 0x80, 0xFF)) {
        const CharScan scan = scan_char(bytes);
        if (scan.is == CharScan::Is::cut) pending_ = bytes;
        bytes.remove_prefix(scan.length);
        return scan.is == CharScan::Is::cut ? Token{} : Token{Kind::text, kReplacement};
    }
    bytes.remove_prefix(1);
    if (c == '\n') return {Kind::newline};
    if (c == '\r') return {Kind::carriage_return};
    if (c == '\b') return {Kind::backspace};
    if (c != kEscape) return give(picture(c));
    pending_ = c;
    return {};
}

Token ByteDecoder::continue_char(std::string_view& bytes) {
    pending_ += bytes[0];
    const CharScan scan = scan_char(pending_);
    if (scan.is == CharScan::Is::broken) {
        // The byte that broke the character begins something of its own.
        pending_.clear();
        return {Kind::text, kReplacement};
    }
    bytes.remove_prefix(1);
    if (scan.is == CharScan::Is::cut) return {};
    return give(std::exchange(pending_, {}));
}

Token ByteDecoder::continue_escape(std::string_view& bytes) {
    if (pending_.size() > 1 && pending_[1] == '[') return continue_csi(bytes);
    if (pending_.size() > 1 && !between(pending_[1], 0x20, 0x2F)) return continue_string(bytes);
    const char c = bytes[0];
    if (pending_.size() >= kLongestEscape || !between(c, 0x20, 0x7E)) return pending_as_text();
    bytes.remove_prefix(1);
    const bool opens =
        pending_.size() == 1 && std::string_view("[]PX^_").find(c) != std::string_view::npos;
    if (opens || between(c, 0x20, 0x2F))
        pending_ += c;
    else
        pending_.clear();
    return {};
}

Token ByteDecoder::continue_csi(std::string_view& bytes) {
    const char c = bytes[0];
    if (pending_.size() >= kLongestEscape || !between(c, 0x20, 0x7E)) return pending_as_text();
    bytes.remove_prefix(1);
    if (c >= 0x40) return finish_csi(c);
    pending_ += c;
    return {};
}

// Titles, links and the like: they end with a bell or with ESC \, and none of them is shown.
Token ByteDecoder::continue_string(std::string_view& bytes) {
    const char c = bytes[0];
    if (pending_.size() >= kLongestEscape || c == '\n') return pending_as_text();
    bytes.remove_prefix(1);
    if (c == '\a' || (c == '\\' && pending_.back() == kEscape))
        pending_.clear();
    else
        pending_ += c;
    return {};
}

Token ByteDecoder::finish_csi(char final_byte) {
    const std::string sequence = std::exchange(pending_, {}) + final_byte;
    int number = -1;
    std::from_chars(sequence.data() + 2, sequence.data() + sequence.size(), number);
    switch (final_byte) {
        case 'm':
            return give(sequence);
        case 'A':
        case 'F':
            return {Kind::up, {}, std::clamp(number, 1, kFarthestUp)};
        case 'G':
            return number <= 1 ? Token{Kind::carriage_return} : Token{};
        case 'J':
            return number <= 0 ? Token{Kind::erase_right} : Token{};
        case 'K':
            return number <= 0 ? Token{Kind::erase_right} : Token{Kind::erase_line};
        case 'h':
            return sequence == "\x1b[?25h" ? Token{Kind::cursor_shown} : Token{};
        default:
            return {};
    }
}

Token ByteDecoder::pending_as_text() {
    std::string text;
    for (const char c : std::exchange(pending_, {})) {
        if (is_plain(c))
            text += c;
        else
            text += between(c, 0x80, 0xFF) ? std::string(kReplacement) : picture(c);
    }
    return give(std::move(text));
}

Token ByteDecoder::give(std::string text) {
    given_ = std::move(text);
    return {Kind::text, given_};
}

}  // namespace sgpu
