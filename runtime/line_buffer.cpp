#include "runtime/line_buffer.h"

#include <algorithm>

namespace sgpu {
namespace {

constexpr std::string_view kResetColour = "\x1b[0m";

bool is_blank(std::string_view text) {
    return text.find_first_not_of(' ') == std::string_view::npos;
}

bool is_char_start(char c) {
    return (c & 0xC0) != 0x80;
}

// Whether a colour is open behind `text`, if `open` says so for what stands before it. Only
// colours are left of the escape sequences, so ESC always begins one.
bool colour_open_after(std::string_view text, bool open) {
    const std::size_t last = text.rfind('\x1b');
    if (last == std::string_view::npos) return open;
    const std::string_view rest = text.substr(last);
    return !rest.starts_with("\x1b[m") && !rest.starts_with(kResetColour);
}

// The most of `text`, at most `room` bytes, that cuts neither a character nor a colour. A colour
// comes as a text of its own.
std::size_t cut_length(std::string_view text, std::size_t room) {
    if (text.size() <= room) return text.size();
    if (text[0] == '\x1b') return 0;
    while (room > 0 && !is_char_start(text[room])) --room;
    return room;
}

}  // namespace

void LineBuffer::add(std::string_view bytes, TimePoint now, Lines& done) {
    if (frames_ && now - now_ > kFrameRest) end_frames();
    now_ = now;
    for (Token token = decoder_.next(bytes); token.kind != Token::Kind::none;
         token = decoder_.next(bytes))
        handle(token, done);
}

void LineBuffer::handle(const Token& token, Lines& done) {
    Row& row = rows_[at_];
    switch (token.kind) {
        case Token::Kind::none:
            break;
        case Token::Kind::text:
            put(token.text, done);
            break;
        case Token::Kind::newline:
            newline(done);
            break;
        case Token::Kind::carriage_return:
            rewind_ = true;
            break;
        case Token::Kind::backspace:
            ++back_;
            break;
        case Token::Kind::up:
            move_up(token.count);
            break;
        case Token::Kind::erase_right:
            if (!rewind_) break;
            row.text.clear();
            row.progress = true;
            break;
        case Token::Kind::erase_line:
            row.text.clear();
            row.progress = frames_ = erased_ = true;
            break;
        case Token::Kind::cursor_shown:
            end_frames();
            break;
    }
}

void LineBuffer::begin_frame(Lines& done) {
    erased_ = false;
    for (; at_ > 0; --at_) {
        give(rows_.front(), done);
        rows_.erase(rows_.begin());
    }
}

void LineBuffer::end_frames() {
    frames_ = erased_ = nested_ = false;
    if (rows_.back().text.empty()) rows_.back().progress = false;
}

void LineBuffer::put(std::string_view text, Lines& done) {
    if (erased_) begin_frame(done);
    Row& row = rows_[at_];
    if (rewind_) {
        // What was shown of this row stays as a line of its own; this is the row that replaces it.
        row = Row{.text = {}, .progress = true, .continues = false, .colour = false};
    } else if (back_ > 0) {
        erase_characters(row.text);
        row.progress = true;
    }
    rewind_ = false;
    back_ = 0;
    if (row.text.empty()) since_ = now_;
    while (!text.empty()) {
        const std::size_t length = cut_length(text, kMaxLine - row.text.size());
        row.text += text.substr(0, length);
        text.remove_prefix(length);
        if (text.empty()) break;
        give(row, done);
        row = Row{.text = {}, .progress = row.progress, .continues = true, .colour = false};
        since_ = now_;
    }
}

void LineBuffer::erase_characters(std::string& text) {
    for (; back_ > 0 && !text.empty(); --back_) {
        while (!is_char_start(text.back())) text.pop_back();
        text.pop_back();
    }
}

void LineBuffer::newline(Lines& done) {
    const bool inside = at_ + 1 < rows_.size();
    rewind_ = false;
    back_ = 0;
    if (inside) {
        ++at_;
        // A row below that was blanked is free again; one with text is being drawn anew.
        if (is_blank(rows_[at_].text) && at_ + 1 == rows_.size())
            rows_[at_] = Row{.text = {}, .progress = frames_, .continues = false, .colour = false};
        else
            rewind_ = true;
        return;
    }
    if (rows_.back().progress) {
        held_since_ = now_;
        rows_.push_back({.text = {}, .progress = frames_, .continues = false, .colour = false});
        if (rows_.size() > kMaxRows) {
            give(rows_.front(), done);
            rows_.erase(rows_.begin());
        }
        at_ = rows_.size() - 1;
        return;
    }
    for (Row& row : rows_) give(row, done);
    rows_.resize(1);
    rows_[0] = Row{};
    at_ = 0;
    nested_ = false;
}

void LineBuffer::move_up(int count) {
    at_ -= std::min(at_, static_cast<std::size_t>(count));
    nested_ = true;
    rewind_ = true;
}

void LineBuffer::give(Row& row, Lines& done) const {
    if (row.progress) {
        row.text.resize(row.text.find_last_not_of(' ') + 1);
        if (row.text.empty() && !row.continues) return;
    }
    if (colour_open_after(row.text, row.colour)) row.text += kResetColour;
    done.push_back({std::move(row.text), row.continues, row.progress});
}

std::optional<TimePoint> LineBuffer::settles_at() const {
    if (rows_.size() == 1 || nested_) return {};
    return held_since_ + window_;
}

void LineBuffer::settle(Lines& done) {
    if (!settles_at()) return;
    for (std::size_t i = 0; i + 1 < rows_.size(); ++i) give(rows_[i], done);
    rows_.erase(rows_.begin(), rows_.end() - 1);
    at_ = 0;
}

std::string_view LineBuffer::partial() const {
    if (rows_.size() > 1 || is_live(rows_.back())) return {};
    return rows_.back().text;
}

bool LineBuffer::partial_shown() {
    Row& row = rows_.back();
    row.colour = colour_open_after(row.text, row.colour);
    row.continues = true;
    row.text.clear();
    return row.colour;
}

void LineBuffer::end_partial(Lines& done) {
    Row& row = rows_.back();
    if (rows_.size() > 1 || is_live(row) || (row.text.empty() && !row.continues)) return;
    give(row, done);
    row = Row{.text = {}, .progress = false, .continues = true, .colour = false};
}

void LineBuffer::finish(Lines& done) {
    if (const std::string_view cut = decoder_.finish(); !cut.empty()) put(cut, done);
    Row last = std::move(rows_.back());
    rows_.pop_back();
    for (Row& row : rows_) give(row, done);
    const bool begun = !last.text.empty() || last.continues;
    if (begun) give(last, done);
    // The line end that may come late belongs to the line that was given.
    rows_.assign(1, Row{.text = {}, .progress = false, .continues = begun, .colour = false});
    at_ = 0;
    rewind_ = nested_ = frames_ = erased_ = false;
    back_ = 0;
}

bool LineBuffer::is_live(const Row& row) const {
    return row.progress || (&row == &rows_[at_] && (rewind_ || back_ > 0));
}

std::vector<std::string> LineBuffer::live() const {
    std::vector<std::string> texts;
    for (const Row& row : rows_) {
        if (!is_live(row) || is_blank(row.text)) continue;
        texts.push_back(row.text.substr(0, row.text.find_last_not_of(' ') + 1));
        if (colour_open_after(row.text, row.colour)) texts.back() += kResetColour;
    }
    return texts;
}

}  // namespace sgpu
