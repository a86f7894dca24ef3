// rank_log.h: the file that keeps all that one rank wrote in one call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/unique_fd.h"

namespace sgpu {

// Owns the descriptor; the file stays. What goes beyond its size is left out, and the file
// says so.
//
// Threads: one at a time.
class RankLog {
public:
    static constexpr std::uint64_t kMaxBytes = 256ULL << 20;

    RankLog() = default;
    // Makes the file, with mode 0600, when the first byte is written. A file that cannot be made or
    // written loses bytes silently: a log must not stop a call.
    explicit RankLog(std::string path, std::uint64_t max_bytes = kMaxBytes)
        : path_(std::move(path)), left_(max_bytes) {}

    void write(std::string_view bytes);

private:
    std::string path_;
    UniqueFd fd_;
    bool tried_ = false;
    std::uint64_t left_ = 0;  // bytes that still go in
};

}  // namespace sgpu
