#include "runtime/output_gather.h"

#include <algorithm>
#include <utility>

namespace sgpu {

OutputGather::Then OutputGather::add(Stream stream, std::string_view bytes, CallId owner,
                                     TimePoint now) {
    if (bytes.empty()) return Then::wait;
    if (segments_.empty() || segments_.back().stream != stream || segments_.back().owner != owner)
        segments_.push_back({stream, owner, {}});
    segments_.back().text += bytes;
    bytes_ += bytes.size();
    if (bytes_ >= kEnough) return Then::write;
    const bool ends_line = bytes.find('\n') != std::string_view::npos;
    return ends_line && line_may_go(now) ? Then::write : Then::wait;
}

bool OutputGather::line_may_go(TimePoint now) {
    const std::chrono::duration<double, std::milli> passed = now - credit_at_;
    credit_at_ = now;
    credit_ = std::min(kBurst, credit_ + passed.count() * kLinesPerMs);
    if (credit_ < 1) return false;
    credit_ -= 1;
    return true;
}

std::vector<OutputGather::Segment> OutputGather::take() {
    bytes_ = 0;
    return std::exchange(segments_, {});
}

}  // namespace sgpu
