// rank_log.h: the files that keep all that one rank wrote in one call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/unique_fd.h"

namespace sgpu {

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
    // Makes the file, with mode 0600, when the first byte is written. A file that cannot be made or
    // written loses bytes silently: a log must not stop a call.
    explicit RankLog(std::string path, std::uint64_t max_bytes = kMaxBytes);

    void write(std::string_view bytes);

    // Closes the file; it is opened again for what comes later.
    void rest() { fd_.reset(); }

    // Bytes that the files hold, about.
    std::uint64_t size() const { return kept_; }

private:
    void open();
    void next_part();
    std::string part_path() const;
    std::string rotation_note() const;

    std::string path_;
    UniqueFd fd_;
    std::uint64_t max_bytes_ = 0;
    int part_ = 0;            // 0: the begin
    std::uint64_t left_ = 0;  // bytes that still go into this part
    std::uint64_t kept_ = 0;
    std::uint64_t lost_ = 0;       // bytes of parts that are gone
    std::uint64_t last_full_ = 0;  // size of the part before this one, if it is not the begin
};

}  // namespace sgpu
