#include "runtime/merge_queue.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <limits>
#include <utility>

namespace sgpu {
namespace {

// How far another rank's queue is searched for a line before it is shown without that rank. The
// whole search is bounded too, so that a large world stays cheap.
constexpr std::size_t kLookAhead = 8;
constexpr std::size_t kLookAheadTotal = 512;
// After so many lines of single ranks the search is short, for it costs more than all the rest.
constexpr std::size_t kAlone = 256;
constexpr std::size_t kShortLook = 1;
// How many lines may be put off at once in favour of lines that hold them back.
constexpr std::size_t kPutOff = 4;

}  // namespace

bool MergeQueue::Entry::merges_with(const Entry& other) const {
    if (hash != other.hash || line.stream != other.line.stream ||
        line.continues != other.line.continues || line.type != other.line.type)
        return false;
    if (progress && other.progress) return same_state(*progress, *other.progress);
    return line.text == other.line.text;
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
    std::unique_ptr<const ProgressText> progress;
    if (line.progress) progress = std::make_unique<ProgressText>(read_progress(line.text));
    const std::size_t hash = std::hash<std::string>{}(progress ? progress->rest : line.text);
    to.place = options_.merge ? std::max(place_, to.place + 1) : ++place_;
    to.lines.push_back({.line = std::move(line),
                        .progress = std::move(progress),
                        .hash = hash,
                        .place = to.place,
                        .at = now});
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
    const std::size_t index = next_group(waited_since);
    if (index == groups_.size()) return {};
    return take_group(index);
}

MergeQueue::Merged MergeQueue::pop_oldest() {
    assert(!groups_.empty());
    const auto oldest = std::min_element(
        groups_.begin(), groups_.end(), [](const Group& a, const Group& b) { return a.at < b.at; });
    return take_group(static_cast<std::size_t>(oldest - groups_.begin()));
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
            if (!lane(group.first).lines.front().merges_with(head)) continue;
            group.ranks.insert(rank);
            group.first = std::min(group.first, rank);
            ++group.count;
            group.place = std::min(group.place, head.place);
            group.at = std::min(group.at, head.at);
            return;
        }
    }
    groups_.push_back(
        {.ranks = {rank}, .first = rank, .hash = head.hash, .place = head.place, .at = head.at});
}

MergeQueue::Merged MergeQueue::take_group(std::size_t index) {
    std::swap(groups_[index], groups_.back());
    const Group group = std::move(groups_.back());
    groups_.pop_back();
    Merged merged;
    for (const Rank rank : group.ranks) {
        Lane& from = lane(rank);
        bytes_ -= from.lines.front().cost();
        if (rank == group.first) merged.line = std::move(from.lines.front().line);
        from.lines.pop_front();
        if (!from.lines.empty())
            join_group(rank);
        else if (from.waited_for)
            ++idle_;
    }
    alone_ = group.count > 1 ? 0 : alone_ + 1;
    merged.ranks = group.ranks;
    place_ = std::max(place_, group.place);
    return merged;
}

bool MergeQueue::due_at_once() const {
    if (groups_.empty()) return false;
    const std::uint64_t passed = passed_by_idle();
    return std::any_of(groups_.begin(), groups_.end(),
                       [&](const Group& group) { return !waits(group, passed); });
}

// The place that all ranks that have nothing queued and are waited for have printed a line in.
std::uint64_t MergeQueue::passed_by_idle() const {
    std::uint64_t passed = std::numeric_limits<std::uint64_t>::max();
    if (idle_ == 0) return passed;
    for (const Lane& each : lanes_)
        if (each.waited_for && each.lines.empty()) passed = std::min(passed, each.place);
    return passed;
}

// Whether somebody may still join it soon.
bool MergeQueue::waits(const Group& group, std::uint64_t passed) const {
    if (idle_ == 0 || !options_.merge) return false;
    const bool of_few = 2 * group.count < member_count_;
    return !of_few || passed < group.place;
}

bool MergeQueue::comes_before(const Group& a, const Group& b, TimePoint waited_since) const {
    if (a.place != b.place) return a.place < b.place;
    const auto may_grow = [&](const Group& group) {
        return options_.merge && group.at > waited_since && 2 * group.count > member_count_;
    };
    return std::pair(may_grow(a), a.first) < std::pair(may_grow(b), b.first);
}

// The index of the group that comes first of those that are due; groups_.size() if there is none.
std::size_t MergeQueue::first_group(TimePoint waited_since,
                                    const std::vector<std::size_t>& except) const {
    const std::uint64_t passed = passed_by_idle();
    std::size_t best = groups_.size();
    for (std::size_t i = 0; i < groups_.size(); ++i) {
        const Group& group = groups_[i];
        if (group.at > waited_since && waits(group, passed)) continue;
        if (best < groups_.size() && !comes_before(group, groups_[best], waited_since)) continue;
        if (std::find(except.begin(), except.end(), i) == except.end()) best = i;
    }
    return best;
}

std::size_t MergeQueue::next_group(TimePoint waited_since) const {
    const std::size_t first = first_group(waited_since, {});
    std::vector<std::size_t> put_off;
    for (std::size_t index = first; index < groups_.size();
         index = first_group(waited_since, put_off)) {
        if (!can_grow(groups_[index])) return index;
        put_off.push_back(index);
        if (put_off.size() == kPutOff) break;
    }
    return first;
}

// Whether another rank has the line in its queue, only not at the head yet.
bool MergeQueue::can_grow(const Group& group) const {
    if (!options_.merge || look_ahead_ == 0 || group.count == member_count_) return false;
    const std::size_t look_ahead =
        alone_ < kAlone ? look_ahead_ : std::min(look_ahead_, kShortLook);
    for (Rank rank = 0; rank < options_.world; ++rank) {
        const auto& lines = lane(rank).lines;
        if (lines.size() < 2 || group.ranks.contains(rank)) continue;
        const std::size_t end = std::min(lines.size(), look_ahead + 1);
        for (std::size_t i = 1; i < end; ++i)
            if (lines[i].hash == group.hash) return true;
    }
    return false;
}

}  // namespace sgpu
