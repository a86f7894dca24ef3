#include "runtime/merge_queue.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <utility>

namespace sgpu {
namespace {

// How far another rank's queue is searched for a line before it is shown without that rank. The
// whole search is bounded too, so that a large world stays cheap.
constexpr std::size_t kLookAhead = 8;
constexpr std::size_t kLookAheadTotal = 512;
// How many lines may be put off at once in favour of lines that hold them back.
constexpr std::size_t kPutOff = 4;

}  // namespace

bool MergeQueue::Entry::merges_with(const Entry& other) const {
    return hash == other.hash && line.stream == other.line.stream &&
           line.continues == other.line.continues && line.text == other.line.text;
}

MergeQueue::MergeQueue(const Options& options)
    : options_(options),
      member_count_(options.members.size()),
      look_ahead_(std::min(kLookAhead, kLookAheadTotal / static_cast<std::size_t>(options.world))),
      lanes_(static_cast<std::size_t>(options.world)),
      idle_(member_count_) {
    for (const Rank rank : options.members) lane(rank).waited_for = true;
}

void MergeQueue::push(Rank rank, Line line, TimePoint now) {
    assert(options_.members.contains(rank));
    Lane& to = lane(rank);
    const std::size_t hash = std::hash<std::string>{}(line.text);
    to.lines.push_back({.line = std::move(line), .hash = hash, .order = order_++, .at = now});
    bytes_ += to.lines.back().cost();
    if (to.lines.size() > 1) return;
    if (to.waited_for) --idle_;
    join_group(rank);
}

void MergeQueue::stop_waiting_for(Rank rank) {
    Lane& from = lane(rank);
    if (from.waited_for && from.lines.empty()) --idle_;
    from.waited_for = false;
}

std::optional<MergeQueue::Merged> MergeQueue::pop(TimePoint waited_since) {
    const std::size_t index = next_group(due_at_once() ? TimePoint::max() : waited_since);
    if (index == groups_.size()) return {};
    return take_group(index);
}

MergeQueue::Merged MergeQueue::pop_oldest() {
    assert(!groups_.empty());
    return take_group(oldest_group(TimePoint::max(), {}));
}

std::optional<MergeQueue::Merged> MergeQueue::pop_head(Rank rank) {
    const auto found = std::find_if(groups_.begin(), groups_.end(), [rank](const Group& group) {
        return group.ranks.contains(rank);
    });
    if (found == groups_.end()) return {};
    return take_group(static_cast<std::size_t>(found - groups_.begin()));
}

std::optional<TimePoint> MergeQueue::oldest_since() const {
    std::optional<TimePoint> since;
    for (const Group& group : groups_) since = since ? std::min(*since, group.at) : group.at;
    return since;
}

void MergeQueue::join_group(Rank rank) {
    const Entry& head = lane(rank).lines.front();
    if (options_.merge) {
        for (Group& group : groups_) {
            if (group.hash != head.hash) continue;
            if (!lane(*group.ranks.begin()).lines.front().merges_with(head)) continue;
            group.ranks.insert(rank);
            group.order = std::min(group.order, head.order);
            group.at = std::min(group.at, head.at);
            return;
        }
    }
    groups_.push_back({.ranks = {rank}, .hash = head.hash, .order = head.order, .at = head.at});
}

MergeQueue::Merged MergeQueue::take_group(std::size_t index) {
    std::swap(groups_[index], groups_.back());
    const Group group = std::move(groups_.back());
    groups_.pop_back();
    Merged merged;
    for (const Rank rank : group.ranks) {
        Lane& from = lane(rank);
        bytes_ -= from.lines.front().cost();
        merged.line = std::move(from.lines.front().line);
        from.lines.pop_front();
        if (!from.lines.empty())
            join_group(rank);
        else if (from.waited_for)
            ++idle_;
    }
    merged.ranks = group.ranks;
    return merged;
}

// The place of the oldest group that has waited; groups_.size() if there is none.
std::size_t MergeQueue::oldest_group(TimePoint waited_since,
                                     const std::vector<std::size_t>& except) const {
    std::size_t best = groups_.size();
    for (std::size_t i = 0; i < groups_.size(); ++i) {
        if (groups_[i].at > waited_since) continue;
        if (best < groups_.size() && groups_[i].order > groups_[best].order) continue;
        if (std::find(except.begin(), except.end(), i) == except.end()) best = i;
    }
    return best;
}

std::size_t MergeQueue::next_group(TimePoint waited_since) const {
    const std::size_t first = oldest_group(waited_since, {});
    std::vector<std::size_t> put_off;
    for (std::size_t index = first; index < groups_.size();
         index = oldest_group(waited_since, put_off)) {
        if (!can_grow(groups_[index])) return index;
        put_off.push_back(index);
        if (put_off.size() == kPutOff) break;
    }
    return first;
}

// Whether another rank has the line in its queue, only not at the head yet.
bool MergeQueue::can_grow(const Group& group) const {
    if (!options_.merge || look_ahead_ == 0 || group.ranks.size() == member_count_) return false;
    for (Rank rank = 0; rank < options_.world; ++rank) {
        const auto& lines = lane(rank).lines;
        if (lines.size() < 2 || group.ranks.contains(rank)) continue;
        const std::size_t end = std::min(lines.size(), look_ahead_ + 1);
        for (std::size_t i = 1; i < end; ++i)
            if (lines[i].hash == group.hash) return true;
    }
    return false;
}

}  // namespace sgpu
