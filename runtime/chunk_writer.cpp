#include "runtime/chunk_writer.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sgpu {
namespace {

// A grey that is read as well on white as on black and on the red of stderr.
constexpr std::string_view kDim = "\x1b[38;5;244m";
constexpr std::string_view kReset = "\x1b[0m";

// 1204331 as 1,204,331.
std::string grouped(std::uint64_t number) {
    std::string text = std::to_string(number);
    for (std::size_t place = text.size(); place > 3; place -= 3) text.insert(place - 3, ",");
    return text;
}

}  // namespace

void ChunkWriter::line(const Line& line) {
    if (in_place(line)) {
        write(line.stream, line.text);
        write(line.stream, "\n");
        open_.reset();
        return;
    }
    end_open();
    // The line that this line end belongs to has been ended already.
    if (line.continues && line.text.empty()) return;
    if (flooded()) {
        keep_in_tail(line);
        return;
    }
    std::string_view before = prefix(line.ranks);
    if (line.text.empty()) before = before.substr(0, before.find_last_not_of(' ') + 1);
    write(line.stream, before);
    write(line.stream, line.text);
    write(line.stream, "\n");
}

void ChunkWriter::partial(const Line& line, bool colour_open) {
    assert(!flooded());
    if (!in_place(line)) {
        end_open();
        write(line.stream, prefix(line.ranks));
    }
    write(line.stream, line.text);
    open_ = Open{line.ranks, line.stream, colour_open};
}

void ChunkWriter::display(const RankSet& ranks, std::string type, std::string content) {
    end_open();
    chunks_.push_back({Stream::out, std::move(content), std::move(type), ranks});
}

void ChunkWriter::end_open() {
    if (!open_) return;
    if (open_->colour) write(open_->stream, kReset);
    write(open_->stream, "\n");
    open_.reset();
}

void ChunkWriter::end_flood() {
    if (dropped_ > reported_) {
        write(Stream::out, "… " + grouped(dropped_ - reported_) +
                               " lines not shown; all are in the log (%distributed logs)\n");
        reported_ = dropped_;
    }
    for (const Kept* kept : tail_in_order()) write(kept->line.stream, kept->line.text);
    tail_.clear();
    tail_lines_ = tail_bytes_ = 0;
}

std::vector<Chunk> ChunkWriter::take() {
    return std::exchange(chunks_, {});
}

bool ChunkWriter::in_place(const Line& line) const {
    return line.continues && open_ && open_->stream == line.stream && open_->ranks == line.ranks;
}

void ChunkWriter::write(Stream stream, std::string_view text) {
    if (chunks_.empty() || chunks_.back().stream != stream || !chunks_.back().type.empty())
        chunks_.push_back({stream, {}});
    chunks_.back().text += text;
    shown_ += text.size();
    if (options_.burst == 0) return;
    credit_ -= static_cast<double>(text.size());
    if (credit_ <= 0) too_fast_ = true;
}

void ChunkWriter::advance(TimePoint now) {
    if (options_.burst == 0) return;
    const std::chrono::duration<double> passed = now - credit_at_;
    const double earned = passed.count() * static_cast<double>(options_.bytes_per_second);
    credit_ = std::min(static_cast<double>(options_.burst), credit_ + earned);
    credit_at_ = now;
    if (!too_fast_ || credit_ < enough_credit()) return;
    too_fast_ = false;
    if (!flooded()) end_flood();
}

double ChunkWriter::enough_credit() const {
    return static_cast<double>(options_.burst) / 2;
}

std::optional<TimePoint> ChunkWriter::flood_ends() const {
    if (!too_fast_ || shown_ >= options_.max_bytes) return {};
    const double missing = std::max(0.0, enough_credit() - credit_);
    const std::chrono::duration<double> wait(missing /
                                             static_cast<double>(options_.bytes_per_second));
    return credit_at_ + std::chrono::ceil<std::chrono::milliseconds>(wait);
}

void ChunkWriter::keep_in_tail(const Line& line) {
    const auto first = static_cast<std::size_t>(*line.ranks.begin());
    if (first >= tail_.size()) tail_.resize(first + 1);
    Share& share = tail_[first];
    share.lines.push_back({next_number_++, {line.stream, prefix(line.ranks)}});
    std::string& text = share.lines.back().line.text;
    text.append(line.text).append("\n");
    share.bytes += text.size();
    tail_bytes_ += text.size();
    ++tail_lines_;
    while (tail_lines_ > options_.tail_lines || tail_bytes_ > most_tail_bytes()) shorten_tail();
}

// Whoever has most of what there is too much of loses its oldest line.
void ChunkWriter::shorten_tail() {
    const bool by_lines = tail_lines_ > options_.tail_lines;
    const auto smaller = [by_lines](const Share& a, const Share& b) {
        return by_lines ? a.lines.size() < b.lines.size() : a.bytes < b.bytes;
    };
    Share& largest = *std::max_element(tail_.begin(), tail_.end(), smaller);
    const std::size_t bytes = largest.lines.front().line.text.size();
    largest.lines.pop_front();
    largest.bytes -= bytes;
    tail_bytes_ -= bytes;
    --tail_lines_;
    ++dropped_;
}

std::vector<const ChunkWriter::Kept*> ChunkWriter::tail_in_order() const {
    std::vector<const Kept*> all;
    for (const Share& share : tail_)
        for (const Kept& kept : share.lines) all.push_back(&kept);
    const auto earlier = [](const Kept* a, const Kept* b) { return a->number < b->number; };
    std::sort(all.begin(), all.end(), earlier);
    return all;
}

std::size_t ChunkWriter::most_tail_bytes() const {
    if (options_.burst > 0) return options_.burst / 8;
    return std::max(kLeastTailBytes, options_.max_bytes / 8);
}

std::vector<std::string> ChunkWriter::newest_unshown(std::size_t most) const {
    const auto all = tail_in_order();
    std::vector<std::string> lines;
    for (std::size_t i = all.size() - std::min(most, all.size()); i < all.size(); ++i)
        lines.push_back(all[i]->line.text);
    return lines;
}

const std::string& ChunkWriter::prefix(const RankSet& ranks) {
    if (!options_.prefix || ranks == prefixed_) return prefix_;
    if (ranks.size() > 1) {
        prefixed_ = ranks;
        return prefix_ = make_prefix(ranks);
    }
    const auto rank = static_cast<std::size_t>(ranks.max());
    if (rank >= rank_prefixes_.size()) rank_prefixes_.resize(rank + 1);
    std::string& text = rank_prefixes_[rank];
    if (text.empty()) text = make_prefix(ranks);
    return text;
}

std::string ChunkWriter::make_prefix(const RankSet& ranks) const {
    const std::string text = "[" + ranks.to_string() + "]";
    if (!options_.colour) return text + ' ';
    return std::string(kDim) + text + std::string(kReset) + ' ';
}

}  // namespace sgpu
