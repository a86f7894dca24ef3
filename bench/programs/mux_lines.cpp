// mux_lines.cpp: what it costs to merge the lines of 8 ranks: CPU nanoseconds for each line of a
// rank, printed for lines that are equal on all ranks and for lines that differ on each.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "runtime/output_mux.h"

namespace {

using sgpu::OutputMux;
using sgpu::TimePoint;

constexpr int kRanks = 8;
constexpr int kLines = 100'000;                // of each rank
constexpr std::size_t kRead = 64UL << 10;      // bytes that come at once, as from a pipe
constexpr std::chrono::milliseconds kTurn{2};  // between two looks at the pipes

double cpu_seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

std::string text_of(int rank, bool equal) {
    std::string text;
    for (int i = 0; i < kLines; ++i)
        text += "rank " + std::to_string(equal ? 0 : rank) + " line " + std::to_string(i) + "\n";
    return text;
}

double nanoseconds_per_line(bool equal) {
    std::vector<std::string> texts;
    std::size_t longest = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
        texts.push_back(text_of(rank, equal));
        longest = std::max(longest, texts.back().size());
    }
    OutputMux mux({.world = kRanks,
                   .window = std::chrono::milliseconds(100),
                   .colour = true,
                   .max_bytes = 1UL << 30});
    TimePoint now{std::chrono::hours(1)};
    std::size_t shown = 0;
    const double begin = cpu_seconds();
    for (std::size_t at = 0; at < longest; at += kRead, now += kTurn) {
        for (int rank = 0; rank < kRanks; ++rank) {
            const std::string& text = texts[static_cast<std::size_t>(rank)];
            if (at < text.size())
                mux.add(rank, sgpu::Stream::out, std::string_view(text).substr(at, kRead), now);
        }
        for (const sgpu::Chunk& chunk : mux.take(now)) shown += chunk.text.size();
    }
    for (const sgpu::Chunk& chunk : mux.flush()) shown += chunk.text.size();
    const double seconds = cpu_seconds() - begin;
    if (shown < longest) return -1;  // nothing may be left out
    return seconds * 1e9 / (kRanks * static_cast<double>(kLines));
}

}  // namespace

int main() {
    std::printf("equal %.1f\ndiffering %.1f\n", nanoseconds_per_line(true),
                nanoseconds_per_line(false));
}
