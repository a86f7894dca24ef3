// merge_queue.h: the lines and rich displays of ranks, in each rank's order, equal ones put
// together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/progress_text.h"
#include "runtime/rank_set.h"
#include "runtime/stream.h"

namespace sgpu {

// One queue per rank; lines merge at the heads of the queues. A head is due when nobody can join it
// any more, as no rank's queue is empty, or when it has waited. A line of few ranks does not wait
// for those that have printed a line in its place already.
// Lines are numbered by their place: the first lines of all ranks have the same, and a rank that
// was silent comes in where the others are. Of the due heads the one with the lowest place comes
// first, in one place by rank; but while the line of most ranks has not waited, those of few go
// before it, and a line that another rank has further back in its queue comes after the lines that
// stand before it there.
//
// Threads: one thread at a time. Cost of a line: one look at the distinct heads, which are as many
// as the ranks at most, and one bounded search when they differ.
class MergeQueue {
public:
    struct Options {
        int world = 1;
        RankSet members;    // only these push, only these are waited for
        bool merge = true;  // false: every line is due at once, alone, in the order of arrival
    };

    struct Line {
        std::string text;
        Stream stream = Stream::out;
        bool continues = false;  // part of what makes two lines equal
        std::string type = {};   // of a rich display, whose content is the text; "" for a line
        bool progress = false;   // equal to others of the same state; the lowest rank's is shown
    };

    struct Merged {
        RankSet ranks;
        Line line;
    };

    explicit MergeQueue(const Options& options);

    // REQUIRES: rank is a member.
    void push(Rank rank, Line line, TimePoint now);

    // Nobody waits for this rank any more. What it has queued stays, and it may still push.
    void stop_waiting_for(Rank rank);

    // The next line that is due, where a head that came at `waited_since` or before has waited
    // enough; absent if there is none.
    std::optional<Merged> pop(TimePoint waited_since);

    // The oldest head, due or not. REQUIRES: bytes() > 0.
    Merged pop_oldest();

    bool empty(Rank rank) const { return lane(rank).lines.empty(); }
    // True if pop() has something however short the heads have waited.
    bool due_at_once() const;
    // When the oldest head came; absent if all queues are empty.
    std::optional<TimePoint> oldest_since() const;
    // Memory that all queues hold, about.
    std::size_t bytes() const { return bytes_; }

private:
    struct Entry {
        Line line;
        std::unique_ptr<const ProgressText> progress;  // few lines have one: lines stay small
        std::size_t hash = 0;
        std::uint64_t place = 0;
        TimePoint at;

        bool merges_with(const Entry& other) const;
        std::size_t cost() const {
            return sizeof(Entry) + line.text.size() + (progress ? progress->rest.size() : 0);
        }
    };

    struct Lane {
        std::deque<Entry> lines;
        std::uint64_t place = 0;  // of the last line pushed
        bool waited_for = false;
    };

    // Ranks that have the same line at the head of their queues.
    struct Group {
        RankSet ranks;
        std::size_t count = 1;  // of ranks
        Rank first = 0;         // of ranks
        std::size_t hash = 0;
        std::uint64_t place = 0;  // the lowest
        TimePoint at;             // of the oldest
    };

    Lane& lane(Rank rank) { return lanes_[static_cast<std::size_t>(rank)]; }
    const Lane& lane(Rank rank) const { return lanes_[static_cast<std::size_t>(rank)]; }

    void join_group(Rank rank);
    Merged take_group(std::size_t index);
    bool waits(const Group& group, std::uint64_t passed) const;
    bool comes_before(const Group& a, const Group& b, TimePoint waited_since) const;
    std::uint64_t passed_by_idle() const;
    std::size_t first_group(TimePoint waited_since, const std::vector<std::size_t>& except) const;
    std::size_t next_group(TimePoint waited_since) const;
    bool can_grow(const Group& group) const;

    Options options_;
    std::size_t member_count_;
    std::size_t look_ahead_;
    std::vector<Lane> lanes_;
    std::vector<Group> groups_;  // one for each distinct head
    std::size_t idle_;           // lanes that are waited for and have nothing queued
    std::size_t bytes_ = 0;
    std::size_t alone_ = 0;    // lines taken since two ranks last had the same
    std::uint64_t place_ = 0;  // of what was taken last; of what came last if nothing merges
};

}  // namespace sgpu
