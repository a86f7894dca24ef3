// line_buffer.h: one stream of one rank, as the lines it ends and the line it is still writing.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/byte_decoder.h"
#include "runtime/stream.h"

namespace sgpu {

// A small terminal. A line that goes back to its start is a progress line: each new text replaces
// the one before. Nested bars move up with ESC [ A, so a progress line that was ended stays in
// reach: it is given away when a plain line follows, or after `window` without a move up.
// Who erases a whole line before drawing draws frames, as rich does: until the cursor is shown
// again, or nothing was drawn for kFrameRest, each row is progress, and what stands above the frame
// is final.
//
// Threads: one thread at a time. Memory: kMaxRows rows of kMaxLine bytes.
class LineBuffer {
public:
    static constexpr std::size_t kMaxLine = 64UL << 10;  // bytes; a longer line is cut
    static constexpr std::size_t kMaxRows = 32;          // of progress lines that can be reached
    static constexpr std::chrono::seconds kFrameRest{1};

    struct Line {
        std::string text;  // valid UTF-8, no line end; a colour left open is reset
        bool continues =
            false;              // the beginning of this line was given by take_partial() or was cut
        bool progress = false;  // the last state of a progress line
    };
    using Lines = std::vector<Line>;

    explicit LineBuffer(std::chrono::milliseconds window) : window_(window) {}

    // Appends to `done` each line that these bytes end.
    void add(std::string_view bytes, TimePoint now, Lines& done);

    // When ended progress lines are out of reach; absent if there are none to wait for.
    std::optional<TimePoint> settles_at() const;
    // Gives them away now. No effect if settles_at() is absent.
    void settle(Lines& done);

    // The beginning of a plain line that has no end yet; "" if there is none.
    std::string_view partial() const;
    bool partial_continues() const { return rows_.back().continues; }
    TimePoint partial_since() const { return since_; }
    // The partial line was shown: what follows has `continues` set. True if a colour is open.
    bool partial_shown();
    // The partial line is ended here, though the rank has not ended it.
    void end_partial(Lines& done);

    // Ends everything: the partial line and progress lines as they stand.
    void finish(Lines& done);

    // Progress lines as they stand, from the top.
    std::vector<std::string> live() const;

private:
    struct Row {
        std::string text;
        bool progress = false;   // it has gone back to its start
        bool continues = false;  // see Line
        bool colour = false;     // open at the end of the part that was shown
    };

    void handle(const Token& token, Lines& done);
    void put(std::string_view text, Lines& done);
    void newline(Lines& done);
    void move_up(int count);
    void begin_frame(Lines& done);
    void end_frames();
    void erase_characters(std::string& text);
    void give(Row& row, Lines& done) const;
    bool is_live(const Row& row) const;

    std::chrono::milliseconds window_;
    ByteDecoder decoder_;
    std::vector<Row> rows_ = std::vector<Row>(1);  // the last is the newest; never empty
    std::size_t at_ = 0;                           // the row the cursor is in
    bool rewind_ = false;                          // the next text replaces the row
    std::size_t back_ = 0;                         // characters the next text replaces
    bool nested_ = false;                          // the cursor has moved up in these rows
    bool frames_ = false;                          // see above
    bool erased_ = false;                          // the next text begins a frame
    TimePoint now_;
    TimePoint since_;       // when the partial line began
    TimePoint held_since_;  // when the last progress line was ended
};

}  // namespace sgpu
