#include "runtime/rank_log.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>

namespace sgpu {

namespace fs = std::filesystem;

RankLog::RankLog(std::string path, std::uint64_t max_bytes)
    : path_(std::move(path)), max_bytes_(max_bytes), left_(max_bytes / 4) {}

void RankLog::write(std::string_view bytes) {
    if (path_.empty()) return;
    while (!bytes.empty()) {
        if (left_ == 0) next_part();
        if (!fd_) open();
        if (!fd_) return;
        const auto part = bytes.substr(0, left_);
        (void)!::write(fd_.get(), part.data(), part.size());
        left_ -= part.size();
        kept_ += part.size();
        bytes.remove_prefix(part.size());
    }
}

void RankLog::open() {
    std::error_code ignored;
    fs::create_directories(fs::path(path_).parent_path(), ignored);
    fd_.reset(::open(part_path().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
}

std::string RankLog::part_path() const {
    return part_ == 0 ? path_ : path_ + ".2";
}

void RankLog::next_part() {
    fd_.reset();
    const std::uint64_t part_size = std::max<std::uint64_t>(1, max_bytes_ / 8 * 3);
    if (part_++ > 0) {
        std::error_code ignored;
        fs::rename(path_ + ".2", path_ + ".1", ignored);
        lost_ += last_full_;
        kept_ -= last_full_;
        last_full_ = part_size;
    }
    left_ = part_size;
    open();
    const std::string note = rotation_note();
    if (fd_ && lost_ > 0) (void)!::write(fd_.get(), note.data(), note.size());
}

std::string RankLog::rotation_note() const {
    std::array<char, 32> when{};
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::localtime_r(&now, &parts);
    std::strftime(when.data(), when.size(), "%Y-%m-%d %H:%M:%S", &parts);
    return "(log rotated at " + std::string(when.data()) + ": " + std::to_string(lost_) +
           " bytes between the first part and the last two are gone)\n";
}

}  // namespace sgpu
