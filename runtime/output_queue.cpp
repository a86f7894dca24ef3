#include "runtime/output_queue.h"

#include <algorithm>
#include <utility>

namespace sgpu {
namespace {

bool is_display(const OutputEvent& event) {
    return !event.ranks.empty();
}

}  // namespace

void OutputQueue::add_text(CallId call, Stream stream, std::string text) {
    const char* const type = stream == Stream::out ? "stdout" : "stderr";
    OutputEvent* const last = events_.empty() ? nullptr : &events_.back();
    if (last && last->call == call && last->type == type && last->content.size() < kEnough)
        last->content += text;
    else
        events_.push_back({call, {}, type, std::move(text)});
}

void OutputQueue::add_display(OutputEvent event) {
    ++displays_;
    bytes_ += event.content.size();
    events_.push_back(std::move(event));
    while (displays_ > 1 && too_much()) drop_oldest_display();
}

bool OutputQueue::too_much() const {
    return displays_ > limits_.displays || bytes_ > limits_.bytes;
}

void OutputQueue::drop_oldest_display() {
    const auto oldest = std::find_if(events_.begin(), events_.end(), is_display);
    ++dropped_[oldest->call];
    --displays_;
    bytes_ -= oldest->content.size();
    events_.erase(oldest);
}

std::vector<OutputEvent> OutputQueue::take() {
    for (const auto& [call, count] : std::exchange(dropped_, {}))
        add_text(call, Stream::err,
                 "… " + std::to_string(count) + (count == 1 ? " display" : " displays") +
                     " not shown: the notebook took no output for too long\n");
    displays_ = bytes_ = 0;
    return std::exchange(events_, {});
}

}  // namespace sgpu
