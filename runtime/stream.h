// stream.h: the two streams of a rank, the call that output belongs to, and the clock that all
// timers of the runtime read.
#pragma once

#include <chrono>
#include <cstdint>

namespace sgpu {

enum class Stream : std::uint8_t { out, err };

using CallId = std::uint64_t;  // names one call; larger than every call before it; 0 is none

using TimePoint = std::chrono::steady_clock::time_point;

}  // namespace sgpu
