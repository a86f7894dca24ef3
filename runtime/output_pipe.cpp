#include "runtime/output_pipe.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <optional>

namespace sgpu {
namespace {

constexpr char kMark = '\x1e';
constexpr char kOwner = '=';
constexpr std::uint32_t kOwnerMask = 0x0FFFFFFF;  // what seven digits hold
constexpr std::size_t kNumberDigits = 8;
constexpr std::size_t kReadSize = 64UL * 1024;
constexpr int kReadsPerTurn = 4;     // so that a flood on one pipe does not starve the others
constexpr int kReadsOfTheDead = 64;  // a pipe holds less; a child that writes on must not hold us

struct Mark {
    bool names_owner = false;
    std::uint32_t number = 0;
};

// What stands between a mark's key and its end, if it is one.
std::optional<Mark> read_mark(const char* digits) {
    Mark mark{.names_owner = *digits == kOwner};
    const char* end = digits + kNumberDigits;
    const auto parsed = std::from_chars(digits + (mark.names_owner ? 1 : 0), end, mark.number, 16);
    if (parsed.ptr != end || *end != kMark) return std::nullopt;
    if (mark.number == 0 && !mark.names_owner) return std::nullopt;
    return mark;
}

}  // namespace

std::string mark_bytes(const std::string& key, std::uint32_t number) {
    char digits[kNumberDigits + 1];
    std::snprintf(digits, sizeof digits, "%08x", number);
    return kMark + key + digits + kMark;
}

std::string owner_mark_bytes(const std::string& key, CallId call) {
    char digits[kNumberDigits + 1];
    std::snprintf(digits, sizeof digits, "%c%07x", kOwner,
                  static_cast<std::uint32_t>(call) & kOwnerMask);
    return kMark + key + digits + kMark;
}

OutputPipe::OutputPipe(UniqueFd fd, std::string key) : fd_(std::move(fd)), key_(std::move(key)) {}

bool OutputPipe::read_some() {
    thread_local std::array<char, kReadSize> room;
    bool any = false;
    for (int i = 0; i < kReadsPerTurn && fd_; ++i) {
        const ssize_t n = ::read(fd_.get(), room.data(), room.size());
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) fd_.reset();
        if (n <= 0) break;
        any = true;
        tail_.append(room.data(), static_cast<std::size_t>(n));
        cut();
        if (static_cast<std::size_t>(n) < room.size()) break;
    }
    return any;
}

void OutputPipe::drain() {
    for (int i = 0; i < kReadsOfTheDead && read_some(); ++i) {
    }
    if (!tail_.empty()) pieces.push_back({std::move(tail_), 0, owner_});
    tail_.clear();
    fd_.reset();
}

void OutputPipe::emit(std::size_t from, std::size_t to) {
    if (to <= from) return;
    pieces.push_back({tail_.substr(from, to - from), 0, owner_});
}

void OutputPipe::cut() {
    const std::size_t mark_size = 1 + key_.size() + kNumberDigits + 1;
    std::size_t begin = 0;
    std::size_t at = 0;
    while ((at = tail_.find(kMark, at)) != std::string::npos) {
        const std::size_t have = tail_.size() - at;
        const std::size_t known = std::min(have - 1, key_.size());
        if (tail_.compare(at + 1, known, key_, 0, known) != 0) {
            ++at;  // the user's own byte
            continue;
        }
        if (have < mark_size) break;  // the rest of the mark is still in the pipe
        const auto mark = read_mark(tail_.data() + at + 1 + key_.size());
        if (!mark) {
            ++at;
            continue;
        }
        emit(begin, at);
        if (mark->names_owner)
            owner_ = mark->number;
        else
            pieces.push_back({"", mark->number, 0});
        begin = at = at + mark_size;
    }
    const std::size_t end = at == std::string::npos ? tail_.size() : at;
    emit(begin, end);
    tail_.erase(0, end);
}

}  // namespace sgpu
