// stream.h: the two streams of a rank, and the clock that all timers of the runtime read.
#pragma once

#include <chrono>
#include <cstdint>

namespace sgpu {

enum class Stream : std::uint8_t { out, err };

using TimePoint = std::chrono::steady_clock::time_point;

}  // namespace sgpu
