// call_logs.h: the folder of logs: one folder per call, kept for the last calls.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "runtime/rank_log.h"
#include "runtime/stream.h"

namespace sgpu {

// Logs take no more of the disk than kMostBytes, or a quarter of what is free where that is less:
// folders of temporary files are often in memory. A single call may use all of it once more.
//
// Threads: one at a time.
class CallLogs {
public:
    static constexpr std::size_t kKeptCalls = 50;
    static constexpr std::uint64_t kMostBytes = 2ULL << 30;
    static constexpr std::uint64_t kLeastBytes = 16ULL << 20;

    // `folder` need not exist yet, the folder that it is in must.
    explicit CallLogs(std::string folder, std::uint64_t most_bytes = kMostBytes);

    std::string path(CallId call, int rank) const;

    // Removes logs of calls that are out of reach and gives room to a new one: bytes for each of
    // its ranks.
    std::uint64_t begin(CallId call, int ranks);

    // What the logs of a call hold now.
    void set_size(CallId call, std::uint64_t bytes);

private:
    std::string call_folder(CallId call) const;
    std::uint64_t budget() const;

    std::string folder_;
    std::uint64_t most_bytes_;
    std::map<CallId, std::uint64_t> sizes_;
};

}  // namespace sgpu
