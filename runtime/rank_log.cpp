#include "runtime/rank_log.h"

#include <fcntl.h>

#include <filesystem>

namespace sgpu {

void RankLog::write(std::string_view bytes) {
    if (!tried_ && !path_.empty()) {
        tried_ = true;
        std::error_code ignored;
        std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
        fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    }
    if (!fd_ || left_ == 0) return;
    const bool fits = bytes.size() < left_;
    if (!fits) bytes = bytes.substr(0, left_);
    left_ -= bytes.size();
    (void)!::write(fd_.get(), bytes.data(), bytes.size());
    if (fits) return;
    constexpr std::string_view kFull = "\n(the log is full; the rest is left out)\n";
    (void)!::write(fd_.get(), kFull.data(), kFull.size());
}

}  // namespace sgpu
