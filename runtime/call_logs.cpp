#include "runtime/call_logs.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

namespace sgpu {

namespace fs = std::filesystem;

CallLogs::CallLogs(std::string folder, std::uint64_t most_bytes)
    : folder_(std::move(folder)), most_bytes_(most_bytes) {}

std::string CallLogs::call_folder(CallId call) const {
    return folder_ + "/call-" + std::to_string(call);
}

std::string CallLogs::path(CallId call, int rank) const {
    return call_folder(call) + "/rank-" + std::to_string(rank) + ".log";
}

std::uint64_t CallLogs::budget() const {
    std::error_code error;
    const auto space = fs::space(fs::path(folder_).parent_path(), error);
    if (error) return kLeastBytes;
    const auto used =
        std::accumulate(sizes_.begin(), sizes_.end(), std::uint64_t{0},
                        [](std::uint64_t sum, const auto& entry) { return sum + entry.second; });
    return std::min(most_bytes_, std::max((space.available + used) / 4, kLeastBytes));
}

std::uint64_t CallLogs::begin(CallId call, int ranks) {
    const std::uint64_t most = budget();
    std::uint64_t used = 0;
    std::size_t kept = 0;
    for (auto it = sizes_.rbegin(); it != sizes_.rend(); ++it) {
        used += it->second;
        if (used > most || kept + 1 == kKeptCalls) break;
        ++kept;
    }
    while (sizes_.size() > kept) {
        std::error_code ignored;
        fs::remove_all(call_folder(sizes_.begin()->first), ignored);
        sizes_.erase(sizes_.begin());
    }
    sizes_[call] = 0;
    return std::min(RankLog::kMaxBytes, most / static_cast<std::uint64_t>(std::max(1, ranks)));
}

void CallLogs::set_size(CallId call, std::uint64_t bytes) {
    const auto found = sizes_.find(call);
    if (found != sizes_.end()) found->second = bytes;
}

}  // namespace sgpu
