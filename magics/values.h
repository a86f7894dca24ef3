// values.h: readers of the values that flags take. Each says which part of the text is wrong.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sgpu::magics {

// A whole number of at least 1 that fits an int; absent for anything else.
std::optional<int> to_count(std::string_view text);

// `90`, `1.5`, `90s`, `10m`, `2h`, `1d`: more than 0, at most kLongestTimeout.
std::optional<std::chrono::milliseconds> to_duration(std::string_view text);
inline constexpr std::chrono::hours kLongestTimeout{24 * 365};

// True for what RankSet::parse reads as a set that is not empty.
bool is_rank_text(std::string_view text);

// The largest rank named. REQUIRES: is_rank_text(text).
int max_rank(std::string_view text);

// True for a name that Python lets a variable have. Letters outside ASCII are taken on trust.
bool is_identifier(std::string_view text);

// The pieces between commas, without the blanks around them.
std::vector<std::string_view> split_commas(std::string_view text);

// Insertions, deletions, changes and swaps of neighbours that lead from one word to the other.
std::size_t edit_distance(std::string_view from, std::string_view to);

}  // namespace sgpu::magics
