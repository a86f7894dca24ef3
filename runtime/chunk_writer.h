// chunk_writer.h: lines that are due, as text with prefixes: partial lines in place, floods cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/rank_set.h"
#include "runtime/stream.h"

namespace sgpu {

// Text ready to show: whole lines with their prefixes; only the last may lack its line end. Or a
// rich display.
struct Chunk {
    Stream stream = Stream::out;
    std::string text;       // of a display: its content
    std::string type = {};  // of a display: a Jupyter message type
    RankSet ranks = {};     // that made the display
    friend bool operator==(const Chunk&, const Chunk&) = default;
};

// Threads: one thread at a time. Memory: max_bytes not yet taken, and a tail of an eighth of that,
// or of kLeastTailBytes.
class ChunkWriter {
public:
    static constexpr std::size_t kLeastTailBytes = 64UL << 10;

    struct Options {
        bool prefix = true;
        bool colour = false;
        std::size_t max_bytes = 0;   // shown; what is beyond is a flood
        std::size_t tail_lines = 0;  // kept of a flood, shared by the ranks that are in it
        // Text that goes faster is a flood too, until it has been slower for a while.
        std::size_t burst = 0;  // bytes; 0: no limit
        std::size_t bytes_per_second = 0;
    };

    struct Line {
        const RankSet& ranks;
        Stream stream;
        std::string_view text;
        bool continues;  // its beginning was given to partial() for the same ranks, or was cut
    };

    explicit ChunkWriter(Options options)
        : options_(options), credit_(static_cast<double>(options.burst)) {}

    // A whole line. It completes the open partial line if it continues that one.
    void line(const Line& line);

    // The beginning of a line, to be completed in place if nothing comes between.
    // REQUIRES: not flooded().
    void partial(const Line& line, bool colour_open);

    // A rich display. Floods do not count it.
    void display(const RankSet& ranks, std::string type, std::string content);

    // Ends the open partial line, if there is one.
    void end_open();

    // Says how much of a flood is not shown and shows its tail.
    void end_flood();

    // Lines of a flood that are not shown, or only will be as its tail.
    std::uint64_t unshown_lines() const { return dropped_ - reported_ + tail_lines_; }
    // The newest of them, `most` at most, with prefixes and line ends.
    std::vector<std::string> newest_unshown(std::size_t most) const;

    // While it is true, lines are counted, and only the last ones kept.
    bool flooded() const { return too_fast_ || shown_ >= options_.max_bytes; }
    // The time is `now`: a flood of text that was too fast may end here.
    void advance(TimePoint now);
    // When that will be, if nothing is written; absent if there is no such flood.
    std::optional<TimePoint> flood_ends() const;

    // True if take() has something.
    bool ready() const { return !chunks_.empty(); }
    std::vector<Chunk> take();

    // Lines of floods that were never shown, the tail being shown by end_flood().
    std::uint64_t dropped_lines() const { return dropped_; }

private:
    struct Open {
        RankSet ranks;
        Stream stream;
        bool colour;
    };
    // A line of the tail, with prefix and line end.
    struct Kept {
        std::uint64_t number;  // in the order of all lines
        Chunk line;
    };
    struct Share {
        std::deque<Kept> lines;
        std::size_t bytes = 0;
    };

    bool in_place(const Line& line) const;
    void write(Stream stream, std::string_view text);
    void keep_in_tail(const Line& line);
    void shorten_tail();
    std::vector<const Kept*> tail_in_order() const;
    double enough_credit() const;  // for a flood to end
    std::size_t most_tail_bytes() const;
    const std::string& prefix(const RankSet& ranks);
    std::string make_prefix(const RankSet& ranks) const;

    Options options_;
    std::vector<Chunk> chunks_;
    std::optional<Open> open_;
    std::size_t shown_ = 0;
    bool too_fast_ = false;
    double credit_ = 0;  // bytes that may be shown at once
    TimePoint credit_at_;

    // By the first rank of a line, so that a rank that writes much leaves the others' last lines.
    std::vector<Share> tail_;
    std::size_t tail_lines_ = 0;
    std::size_t tail_bytes_ = 0;
    std::uint64_t next_number_ = 0;
    std::uint64_t dropped_ = 0;
    std::uint64_t reported_ = 0;  // of dropped_, what end_flood() has spoken of

    // Prefixes that were made: of single ranks, and the last of several ranks.
    std::vector<std::string> rank_prefixes_;
    RankSet prefixed_;
    std::string prefix_;
};

}  // namespace sgpu
