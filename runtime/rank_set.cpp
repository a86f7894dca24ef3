#include "runtime/rank_set.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <charconv>
#include <optional>

namespace sgpu {
namespace {

bool is_rank(Rank rank) {
    return rank >= 0 && rank < kMaxRanks;
}

std::string_view trimmed(std::string_view text) {
    const auto first = text.find_first_not_of(" \t");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::optional<Rank> to_rank(std::string_view digits) {
    Rank rank = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (error != std::errc{} || end != digits.data() + digits.size() || !is_rank(rank)) return {};
    return rank;
}

struct Range {
    Rank first = 0;
    Rank last = 0;
};

std::optional<Range> to_range(std::string_view piece) {
    const auto dash = piece.find('-');
    const auto first = to_rank(piece.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : to_rank(piece.substr(dash + 1));
    if (!first || !last || *first > *last) return {};
    return Range{*first, *last};
}

Error bad_piece(std::string_view piece) {
    return {Errc::bad_input, "'" + std::string(piece) +
                                 "' is not a set of ranks; write it as 0-3,7, with ranks of 0 to " +
                                 std::to_string(kMaxRanks - 1)};
}

}  // namespace

RankSet::Iterator& RankSet::Iterator::operator++() {
    rank_ = set_->next(rank_ + 1);
    return *this;
}

RankSet::Iterator RankSet::Iterator::operator++(int) {
    const Iterator before = *this;
    ++*this;
    return before;
}

RankSet::RankSet(std::initializer_list<Rank> ranks) {
    for (const Rank rank : ranks) insert(rank);
}

RankSet RankSet::all(int world) {
    assert(world >= 0 && world <= kMaxRanks);
    RankSet set;
    for (Rank rank = world - 1; rank >= 0; --rank) set.insert(rank);
    return set;
}

Result<RankSet> RankSet::parse(std::string_view text) {
    RankSet set;
    if (trimmed(text).empty()) return set;
    for (std::size_t start = 0; start <= text.size();) {
        const std::size_t comma = std::min(text.find(',', start), text.size());
        const std::string_view piece = trimmed(text.substr(start, comma - start));
        const auto range = to_range(piece);
        if (!range) return bad_piece(piece.empty() ? text : piece);
        for (Rank rank = range->last; rank >= range->first; --rank) set.insert(rank);
        start = comma + 1;
    }
    return set;
}

std::string RankSet::to_string() const {
    std::string text;
    for (Rank first = next(0); first < kMaxRanks;) {
        Rank last = first;
        while (contains(last + 1)) ++last;
        if (!text.empty()) text += ',';
        text += std::to_string(first);
        if (last > first) text += '-' + std::to_string(last);
        first = next(last + 1);
    }
    return text;
}

void RankSet::insert(Rank rank) {
    assert(is_rank(rank));
    if (rank < kWordBits) {
        low_ |= bit_of(rank);
        return;
    }
    const std::size_t at = word_of(rank) - 1;
    if (at >= high_.size()) high_.resize(at + 1);
    high_[at] |= bit_of(rank);
}

void RankSet::insert(const RankSet& other) {
    low_ |= other.low_;
    if (other.high_.size() > high_.size()) high_.resize(other.high_.size());
    for (std::size_t i = 0; i < other.high_.size(); ++i) high_[i] |= other.high_[i];
}

void RankSet::erase(Rank rank) {
    if (!contains(rank)) return;
    if (rank < kWordBits) {
        low_ &= ~bit_of(rank);
        return;
    }
    high_[word_of(rank) - 1] &= ~bit_of(rank);
    while (!high_.empty() && high_.back() == 0) high_.pop_back();
}

bool RankSet::in_high(Rank rank) const {
    return is_rank(rank) && word_of(rank) < words() && (word(word_of(rank)) & bit_of(rank)) != 0;
}

std::size_t RankSet::size() const {
    auto count = static_cast<std::size_t>(std::popcount(low_));
    for (const std::uint64_t each : high_) count += static_cast<std::size_t>(std::popcount(each));
    return count;
}

Rank RankSet::max() const {
    assert(!empty());
    const std::size_t last = words() - 1;
    return static_cast<Rank>(last + 1) * kWordBits - 1 - std::countl_zero(word(last));
}

Rank RankSet::next(Rank rank) const {
    for (std::size_t i = word_of(rank); i < words(); ++i) {
        const bool first = i == word_of(rank);
        const std::uint64_t left = first ? word(i) & ~(bit_of(rank) - 1) : word(i);
        if (left != 0) return static_cast<Rank>(i) * kWordBits + std::countr_zero(left);
    }
    return kMaxRanks;
}

}  // namespace sgpu
