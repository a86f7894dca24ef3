#include "runtime/rank_log.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
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
        const auto part = bytes.substr(0, left_);
        const std::size_t put = tell_refused() ? append(part) : 0;
        left_ -= put;
        kept_ += put;
        if (put < part.size()) {
            refused_ += bytes.size() - put;
            return;
        }
        bytes.remove_prefix(put);
    }
}

// What the system took of it.
std::size_t RankLog::append(std::string_view bytes) {
    std::size_t put = 0;
    while (fd_ && put < bytes.size()) {
        const ssize_t n = ::write(fd_.get(), bytes.data() + put, bytes.size() - put);
        if (n <= 0) {
            error_ = n < 0 ? errno : EIO;
            break;
        }
        put += static_cast<std::size_t>(n);
    }
    return put;
}

// False while the system refuses that, too: nothing may follow a gap unannounced.
bool RankLog::tell_refused() {
    if (told_ == refused_) return true;
    if (!fd_) return false;
    const std::string note = "\n(" + std::to_string(refused_ - told_) +
                             " bytes are missing here: " + std::strerror(error_) + ")\n";
    const off_t end = ::lseek(fd_.get(), 0, SEEK_END);
    if (append(note) < note.size()) {
        (void)!::ftruncate(fd_.get(), end);
        return false;
    }
    told_ = refused_;
    return true;
}

void RankLog::open() {
    std::error_code ignored;
    fs::create_directories(fs::path(path_).parent_path(), ignored);
    fd_.reset(::open(part_path().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (!fd_) error_ = errno;
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
