#include "runtime/output_mux.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

#include "runtime/line_buffer.h"
#include "runtime/merge_queue.h"

namespace sgpu {
namespace {

constexpr std::array kStreams = {Stream::out, Stream::err};

RankSet shown_ranks(const OutputMux::Options& options) {
    RankSet shown;
    for (const Rank rank : RankSet::all(options.world))
        if (!options.show || options.show->contains(rank)) shown.insert(rank);
    return shown;
}

struct Lane {
    std::array<LineBuffer, 2> buffers;
    bool ended = false;

    LineBuffer& buffer(Stream stream) { return buffers[static_cast<std::size_t>(stream)]; }
};

}  // namespace

class OutputMux::Impl {
public:
    explicit Impl(const Options& options);

    void add(Rank rank, Stream stream, std::string_view bytes, TimePoint now);
    void rank_ended(Rank rank);
    std::vector<Chunk> take(TimePoint now);
    void add_display(Rank rank, std::string type, std::string content, TimePoint now);
    std::vector<Chunk> flush();
    std::optional<TimePoint> next_due() const;
    std::vector<LiveLine> live() const;
    Unshown unshown(std::size_t newest) const {
        return {writer_.unshown_lines(), writer_.newest_unshown(newest)};
    }
    std::uint64_t hidden_lines() const { return filtered_ + writer_.dropped_lines(); }

private:
    Lane& lane(Rank rank) { return lanes_[static_cast<std::size_t>(rank)]; }
    const Lane& lane(Rank rank) const { return lanes_[static_cast<std::size_t>(rank)]; }

    void queue_lines(Rank rank, Stream stream);
    void queue_begun(Rank rank, bool ended);
    void settle_other(Rank rank, Stream stream);
    void write(MergeQueue::Merged merged);
    void drain(TimePoint waited_since);
    bool partial_due(Rank rank, const LineBuffer& buffer, TimePoint now) const;
    void show_partial(Rank rank, Stream stream);

    Options options_;
    RankSet members_;  // whose lines are shown
    std::vector<Lane> lanes_;
    MergeQueue queue_;
    ChunkWriter writer_;
    LineBuffer::Lines done_;  // empty between calls, kept for its capacity
    TimePoint now_;
    std::uint64_t filtered_ = 0;  // lines of ranks that are not shown
};

OutputMux::Impl::Impl(const Options& options)
    : options_(options),
      members_(shown_ranks(options)),
      lanes_(static_cast<std::size_t>(options.world),
             Lane{{LineBuffer(options.window), LineBuffer(options.window)}}),
      queue_({.world = options.world, .members = members_, .merge = options.mode == Mode::merged}),
      writer_({.prefix = options.world > 1,
               .colour = options.colour,
               .max_bytes = options.max_bytes,
               .tail_lines = options.tail_lines,
               .burst = options.burst,
               .bytes_per_second = options.bytes_per_second}) {}

void OutputMux::Impl::add(Rank rank, Stream stream, std::string_view bytes, TimePoint now) {
    assert(rank >= 0 && rank < options_.world);
    now_ = now;
    writer_.advance(now);
    if (!members_.contains(rank)) {
        filtered_ += static_cast<std::uint64_t>(std::count(bytes.begin(), bytes.end(), '\n'));
        return;
    }
    settle_other(rank, stream);
    lane(rank).buffer(stream).add(bytes, now, done_);
    queue_lines(rank, stream);
    while (queue_.bytes() > options_.max_queued) write(queue_.pop_oldest());
}

// What a rank writes to one stream shows that it is done with an ended progress line on the other.
void OutputMux::Impl::settle_other(Rank rank, Stream stream) {
    const Stream other = stream == Stream::out ? Stream::err : Stream::out;
    lane(rank).buffer(other).settle(done_);
    queue_lines(rank, other);
}

void OutputMux::Impl::queue_lines(Rank rank, Stream stream) {
    for (LineBuffer::Line& line : done_)
        queue_.push(rank, {std::move(line.text), stream, line.continues, {}, line.progress}, now_);
    done_.clear();
}

void OutputMux::Impl::write(MergeQueue::Merged merged) {
    MergeQueue::Line& line = merged.line;
    if (line.type.empty())
        writer_.line({merged.ranks, line.stream, line.text, line.continues});
    else
        writer_.display(merged.ranks, std::move(line.type), std::move(line.text));
}

void OutputMux::Impl::drain(TimePoint waited_since) {
    while (auto merged = queue_.pop(waited_since)) write(std::move(*merged));
}

bool OutputMux::Impl::partial_due(Rank rank, const LineBuffer& buffer, TimePoint now) const {
    return queue_.empty(rank) && !buffer.partial().empty() && !writer_.flooded() &&
           buffer.partial_since() + options_.partial_wait <= now;
}

// Shows the partial line of this rank together with the ranks that have come as far.
void OutputMux::Impl::show_partial(Rank rank, Stream stream) {
    const std::string text(lane(rank).buffer(stream).partial());
    const bool continues = lane(rank).buffer(stream).partial_continues();
    RankSet ranks;
    bool colour_open = false;
    for (const Rank other : members_) {
        LineBuffer& buffer = lane(other).buffer(stream);
        const bool same = queue_.empty(other) && buffer.partial() == text &&
                          buffer.partial_continues() == continues;
        if (!same || (other != rank && options_.mode == Mode::all)) continue;
        colour_open = buffer.partial_shown();
        ranks.insert(other);
    }
    writer_.partial({ranks, stream, text, continues}, colour_open);
}

std::vector<Chunk> OutputMux::Impl::take(TimePoint now) {
    now_ = now;
    writer_.advance(now);
    for (const Rank rank : members_) {
        for (const Stream stream : kStreams) {
            LineBuffer& buffer = lane(rank).buffer(stream);
            if (buffer.settles_at().value_or(TimePoint::max()) > now) continue;
            buffer.settle(done_);
            queue_lines(rank, stream);
        }
    }
    drain(now - options_.window);
    for (const Rank rank : members_)
        for (const Stream stream : kStreams)
            if (partial_due(rank, lane(rank).buffer(stream), now)) show_partial(rank, stream);
    return writer_.take();
}

// Queues what the rank has begun on both streams, the older first.
void OutputMux::Impl::queue_begun(Rank rank, bool ended) {
    Lane& from = lane(rank);
    std::array streams = kStreams;
    if (from.buffer(Stream::err).partial_since() < from.buffer(Stream::out).partial_since())
        std::swap(streams[0], streams[1]);
    for (const Stream stream : streams) {
        LineBuffer& buffer = from.buffer(stream);
        if (ended) {
            buffer.finish(done_);
        } else {
            buffer.settle(done_);
            buffer.end_partial(done_);
        }
        queue_lines(rank, stream);
    }
}

void OutputMux::Impl::rank_ended(Rank rank) {
    if (lane(rank).ended || !members_.contains(rank)) return;
    queue_begun(rank, true);
    queue_.stop_waiting_for(rank);
    lane(rank).ended = true;
}

void OutputMux::Impl::add_display(Rank rank, std::string type, std::string content, TimePoint now) {
    if (!members_.contains(rank)) return;
    now_ = now;
    writer_.advance(now);
    queue_begun(rank, lane(rank).ended);
    queue_.push(rank, {.text = std::move(content), .type = std::move(type)}, now);
    while (queue_.bytes() > options_.max_queued) write(queue_.pop_oldest());
}

std::vector<Chunk> OutputMux::Impl::flush() {
    for (const Rank rank : members_) queue_begun(rank, true);
    drain(TimePoint::max());
    writer_.end_open();
    writer_.end_flood();
    return writer_.take();
}

std::optional<TimePoint> OutputMux::Impl::next_due() const {
    if (writer_.ready() || queue_.due_at_once()) return now_;
    std::optional<TimePoint> due;
    const auto consider = [&due](TimePoint at) { due = due ? std::min(*due, at) : at; };
    if (const auto ends = writer_.flood_ends()) consider(*ends);
    if (const auto since = queue_.oldest_since()) consider(*since + options_.window);
    for (const Rank rank : members_) {
        for (const LineBuffer& buffer : lane(rank).buffers) {
            if (const auto settles = buffer.settles_at()) consider(*settles);
            const TimePoint shows = buffer.partial_since() + options_.partial_wait;
            if (partial_due(rank, buffer, shows)) consider(shows);
        }
    }
    return due;
}

std::vector<LiveLine> OutputMux::Impl::live() const {
    std::vector<LiveLine> lines;
    std::vector<ProgressText> states;  // of the lines
    for (const Rank rank : members_) {
        for (const LineBuffer& buffer : lane(rank).buffers) {
            for (std::string& text : buffer.live()) {
                ProgressText state = read_progress(text);
                std::size_t at = options_.mode == Mode::merged ? 0 : lines.size();
                while (at < lines.size() &&
                       (lines[at].ranks.contains(rank) || !in_step(states[at], state)))
                    ++at;
                if (at < lines.size()) {
                    lines[at].ranks.insert(rank);
                } else {
                    lines.push_back({{rank}, std::move(text)});
                    states.push_back(std::move(state));
                }
            }
        }
    }
    return lines;
}

OutputMux::OutputMux(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
OutputMux::~OutputMux() = default;
OutputMux::OutputMux(OutputMux&&) noexcept = default;
OutputMux& OutputMux::operator=(OutputMux&&) noexcept = default;

void OutputMux::add(Rank rank, Stream stream, std::string_view bytes, TimePoint now) {
    impl_->add(rank, stream, bytes, now);
}
void OutputMux::add_display(Rank rank, std::string type, std::string content, TimePoint now) {
    impl_->add_display(rank, std::move(type), std::move(content), now);
}
void OutputMux::rank_ended(Rank rank) {
    impl_->rank_ended(rank);
}
std::vector<Chunk> OutputMux::take(TimePoint now) {
    return impl_->take(now);
}
std::vector<Chunk> OutputMux::flush() {
    return impl_->flush();
}
std::optional<TimePoint> OutputMux::next_due() const {
    return impl_->next_due();
}
std::vector<LiveLine> OutputMux::live() const {
    return impl_->live();
}
Unshown OutputMux::unshown(std::size_t newest) const {
    return impl_->unshown(newest);
}
std::uint64_t OutputMux::hidden_lines() const {
    return impl_->hidden_lines();
}

}  // namespace sgpu
