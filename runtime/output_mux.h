// output_mux.h: what many ranks write, as one text: equal lines once, under the ranks that wrote
// them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chunk_writer.h"
#include "runtime/rank_set.h"
#include "runtime/stream.h"

namespace sgpu {

// A progress line (one written with carriage returns) as it stands now; no prefix, no line end.
struct LiveLine {
    RankSet ranks;
    std::string text;
    friend bool operator==(const LiveLine&, const LiveLine&) = default;
};

// What a flood has that is not shown: how many lines so far, and the newest of them.
struct Unshown {
    std::uint64_t lines = 0;
    std::vector<std::string> newest;  // with prefixes and line ends
};

// Merges the output of the ranks of one call.
//
// The lines of one rank keep their order, stdout against stderr too. A line goes out at once when
// every rank has come to it or when no rank can join it any more, else when it has waited
// `window`. A world of one rank has no prefixes.
// A partial line (no line end yet) is shown when it has waited `partial_wait`; it is completed in
// place if nothing was shown since, else it is ended and its rest becomes a line of its own.
// Progress lines are kept out of the text: live() has their state, and only the last one is shown,
// once for ranks that measured the same state a little differently.
// Bytes may be cut anywhere; what is no UTF-8 becomes U+FFFD, control characters become visible,
// terminal sequences other than colours are dropped.
//
// Threads: one thread at a time. Pure: no clock, no I/O; `now` must not go back.
// Memory: Options::max_queued, Options::max_bytes not yet taken, and per rank a few lines.
class OutputMux {
public:
    enum class Mode {
        merged,  // equal lines of several ranks are one line
        all,     // every line is shown with its one rank, in the order of arrival
    };

    struct Options {
        int world = 1;
        Mode mode = Mode::merged;
        std::optional<RankSet> show = {};  // lines of other ranks are only counted; absent: all
        std::chrono::milliseconds window{50};
        std::chrono::milliseconds partial_wait{200};
        bool colour = false;                 // dim prefixes
        std::size_t max_bytes = 64UL << 20;  // shown; the rest is counted, but for its tail,
        std::size_t tail_lines = 200;        // shared by its ranks and shown at the flood's end
        // Beyond this many bytes at once, and then per second, text is a flood too: for a front end
        // that drops what comes faster. 0: no limit.
        std::size_t burst = 0;
        std::size_t bytes_per_second = 0;
        std::size_t max_queued = 64UL << 20;  // bytes; beyond it lines wait for no other rank
    };

    // REQUIRES: 1 <= world <= kMaxRanks.
    explicit OutputMux(const Options& options);
    ~OutputMux();
    OutputMux(OutputMux&&) noexcept;
    OutputMux& operator=(OutputMux&&) noexcept;
    OutputMux(const OutputMux&) = delete;
    OutputMux& operator=(const OutputMux&) = delete;

    // Takes what `rank` wrote. REQUIRES: 0 <= rank < world.
    void add(Rank rank, Stream stream, std::string_view bytes, TimePoint now);

    // Takes a rich display, which has its place in the order of the rank's lines and merges as they
    // do. It ends the rank's partial lines; its progress lines go on. Ranks outside `show` show
    // none.
    void add_display(Rank rank, std::string type, std::string content, TimePoint now);

    // The rank writes nothing more: its last line is whole as it is, its progress is final, and
    // no line waits for it. To be called when its pipes are drained.
    void rank_ended(Rank rank);

    // What is due now; adjacent lines of a stream are one Chunk.
    std::vector<Chunk> take(TimePoint now);

    // Everything: partial lines, the last state of progress lines, and after a flood its tail.
    // Lines that come later are taken as before.
    std::vector<Chunk> flush();

    // When take() will have something without new input; absent if it never will. May be in the
    // past, and may be early by one take() that gives nothing.
    std::optional<TimePoint> next_due() const;

    // Progress lines in the order of their first rank; those of ranks in step (progress_text.h) are
    // one, as the first of them has it.
    std::vector<LiveLine> live() const;

    // Of a flood that goes on; `newest` lines at most. No lines if there is no flood.
    Unshown unshown(std::size_t newest) const;

    // Lines that were not shown: those of ranks outside `show`, and those of a flood.
    std::uint64_t hidden_lines() const;

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace sgpu
