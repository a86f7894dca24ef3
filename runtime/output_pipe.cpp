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
constexpr std::size_t kNumberDigits = 8;
constexpr std::size_t kReadSize = 64UL * 1024;
constexpr int kReadsPerTurn = 4;     // so that a flood on one pipe does not starve the others
constexpr int kReadsOfTheDead = 64;  // a pipe holds less; a child that writes on must not hold us

// The number of a mark, if its eight digits and its end are there.
std::optional<std::uint32_t> number_of(const char* digits) {
    std::uint32_t number = 0;
    const char* end = digits + kNumberDigits;
    const auto parsed = std::from_chars(digits, end, number, 16);
    if (parsed.ptr != end || *end != kMark || number == 0) return std::nullopt;
    return number;
}

}  // namespace

std::string mark_bytes(const std::string& key, std::uint32_t number) {
    char digits[kNumberDigits + 1];
    std::snprintf(digits, sizeof digits, "%08x", number);
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
    if (!tail_.empty()) pieces.push_back({std::move(tail_), 0});
    tail_.clear();
    fd_.reset();
}

void OutputPipe::emit(std::size_t from, std::size_t to) {
    if (to <= from) return;
    pieces.push_back({tail_.substr(from, to - from), 0});
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
        const auto number = number_of(tail_.data() + at + 1 + key_.size());
        if (!number) {
            ++at;
            continue;
        }
        emit(begin, at);
        pieces.push_back({"", *number});
        begin = at = at + mark_size;
    }
    const std::size_t end = at == std::string::npos ? tail_.size() : at;
    emit(begin, end);
    tail_.erase(0, end);
}

}  // namespace sgpu
