// rank_log.h: the files that keep all that one rank wrote in one call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/unique_fd.h"

namespace sgpu {

// What the files of a log lack of what was written to it, in bytes.
struct LogLoss {
    std::uint64_t refused = 0;  // by the system
    int error = 0;              // its errno, the last one
    std::uint64_t rotated = 0;  // in parts that made room for newer ones

    bool any() const { return refused > 0 || rotated > 0; }
};

// The first quarter of its size goes into the file `path` and stays. What comes then goes to
// `path`.2; when that is full it becomes `path`.1, in the place of an older one, and `path`.2
// begins anew with a line that says when, and how much is gone. So a flood leaves its begin and its
// end.
//
// Owns a descriptor; the files stay.
// Threads: one at a time.
class RankLog {
public:
    static constexpr std::uint64_t kMaxBytes = 256ULL << 20;

    RankLog() = default;
    // Makes the file, with mode 0600, when the first byte is written.
    explicit RankLog(std::string path, std::uint64_t max_bytes = kMaxBytes);

    // A log must not stop a call: what the system refuses is counted, and the file says how much
    // it lacks where it goes on.
    void write(std::string_view bytes);

    // Closes the file; it is opened again for what comes later.
    void rest() { fd_.reset(); }

    // Bytes that the files hold, about.
    std::uint64_t size() const { return kept_; }
    LogLoss loss() const { return {refused_, error_, lost_}; }

private:
    void open();
    std::size_t append(std::string_view bytes);
    bool tell_refused();
    void next_part();
    std::string part_path() const;
    std::string rotation_note() const;

    std::string path_;
    UniqueFd fd_;
    std::uint64_t max_bytes_ = 0;
    int part_ = 0;            // 0: the begin
    std::uint64_t left_ = 0;  // bytes that still go into this part
    std::uint64_t kept_ = 0;
    std::uint64_t refused_ = 0;
    std::uint64_t told_ = 0;  // of refused_, what the file speaks of
    int error_ = 0;
    std::uint64_t lost_ = 0;       // bytes of parts that are gone
    std::uint64_t last_full_ = 0;  // size of the part before this one, if it is not the begin
};

}  // namespace sgpu
