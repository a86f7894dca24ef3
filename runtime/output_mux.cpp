#include "runtime/output_mux.h"

namespace sgpu {

class OutputMux::Impl {};

OutputMux::OutputMux(Options /*options*/) : impl_(std::make_unique<Impl>()) {}
OutputMux::~OutputMux() = default;
OutputMux::OutputMux(OutputMux&&) noexcept = default;
OutputMux& OutputMux::operator=(OutputMux&&) noexcept = default;
void OutputMux::add(Rank /*rank*/, Stream /*stream*/, std::string_view /*bytes*/,
                    TimePoint /*now*/) {}
void OutputMux::rank_ended(Rank /*rank*/) {}
std::vector<Chunk> OutputMux::take(TimePoint /*now*/) {
    return {};
}
std::vector<Chunk> OutputMux::flush_rank(Rank /*rank*/) {
    return {};
}
std::vector<Chunk> OutputMux::flush() {
    return {};
}
std::optional<TimePoint> OutputMux::next_due() const {
    return {};
}
std::vector<LiveLine> OutputMux::live() const {
    return {};
}
std::uint64_t OutputMux::hidden_lines() const {
    return 0;
}

}  // namespace sgpu
