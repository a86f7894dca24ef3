// rank_set.h: a set of ranks, with the one text form it has everywhere: 0-3,7 (Flux RFC 22).
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"

namespace sgpu {

using Rank = int;

// Ranks are 0 .. kMaxRanks - 1; text or calls that name others are refused.
inline constexpr Rank kMaxRanks = 4096;

// A set of ranks. A value: copies are independent, equality is equality of the members.
//
// Threads: as any value; const use from several threads is safe.
class RankSet {
public:
    // Visits the members in rising order. Invalid once the set is changed.
    class Iterator {
    public:
        using iterator_category = std::forward_iterator_tag;
        using value_type = Rank;
        using difference_type = std::ptrdiff_t;
        using pointer = const Rank*;
        using reference = Rank;

        Iterator() = default;
        Rank operator*() const { return rank_; }
        Iterator& operator++();
        Iterator operator++(int);
        friend bool operator==(const Iterator&, const Iterator&) = default;

    private:
        friend class RankSet;
        Iterator(const RankSet* set, Rank rank) : set_(set), rank_(rank) {}

        const RankSet* set_ = nullptr;
        Rank rank_ = 0;
    };

    RankSet() = default;
    // REQUIRES: every rank in 0 .. kMaxRanks - 1.
    RankSet(std::initializer_list<Rank> ranks);

    // The ranks 0 .. world - 1. REQUIRES: 0 <= world <= kMaxRanks.
    static RankSet all(int world);

    // Reads `0-3,7`: numbers and rising ranges between commas, in any order, blanks around them
    // allowed. The empty text is the empty set.
    // Errors: Errc::bad_input, one line that quotes the piece that is wrong.
    static Result<RankSet> parse(std::string_view text);

    // The shortest text that parse() reads back as this set; "" for the empty set.
    std::string to_string() const;

    // REQUIRES: rank in 0 .. kMaxRanks - 1. No effect if it is a member already.
    void insert(Rank rank);
    void insert(const RankSet& other);
    // No effect if it is not a member.
    void erase(Rank rank);

    bool contains(Rank rank) const {
        if (rank >= 0 && rank < kWordBits) return (low_ >> rank & 1) != 0;
        return in_high(rank);
    }
    std::size_t size() const;
    bool empty() const { return low_ == 0 && high_.empty(); }
    // The largest member. REQUIRES: not empty.
    Rank max() const;

    Iterator begin() const { return {this, next(0)}; }
    Iterator end() const { return {this, kMaxRanks}; }

    friend bool operator==(const RankSet&, const RankSet&) = default;

private:
    static constexpr int kWordBits = 64;

    static std::size_t word_of(Rank rank) { return static_cast<std::size_t>(rank) / kWordBits; }
    static std::uint64_t bit_of(Rank rank) { return std::uint64_t{1} << (rank % kWordBits); }
    bool in_high(Rank rank) const;
    // The smallest member that is at least `rank`; kMaxRanks if there is none.
    Rank next(Rank rank) const;
    std::size_t words() const { return 1 + high_.size(); }
    std::uint64_t word(std::size_t index) const { return index == 0 ? low_ : high_[index - 1]; }

    // Bit r % 64 of word r / 64. The first, which is all that one machine needs, is kept here, for
    // a set is made for each line of output.
    std::uint64_t low_ = 0;
    std::vector<std::uint64_t> high_;  // from the second word on; its last is never 0
};

}  // namespace sgpu
