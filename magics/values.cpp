#include "magics/values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace sgpu::magics {
namespace {

// The same bound as the runtime's kMaxRanks; a test holds the two together.
constexpr int kRankLimit = 4096;

constexpr std::array<std::string_view, 35> kKeywords = {
    "False", "None",     "True",  "and",    "as",   "assert", "async",  "await",    "break",
    "class", "continue", "def",   "del",    "elif", "else",   "except", "finally",  "for",
    "from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal", "not",
    "or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield"};

template <class Number>
std::optional<Number> to_number(std::string_view text) {
    Number number{};
    const char* const last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, number);
    if (error != std::errc{} || end != last) return {};
    return number;
}

std::string_view trimmed(std::string_view text) {
    const auto first = text.find_first_not_of(" \t");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}
bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

std::optional<int> to_rank(std::string_view text) {
    const auto rank = to_number<int>(text);
    return rank && *rank >= 0 && *rank < kRankLimit ? rank : std::nullopt;
}

// The last rank of `N` or `N-M`; absent if it is neither or falls.
std::optional<int> range_end(std::string_view piece) {
    const auto dash = piece.find('-');
    const auto first = to_rank(piece.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : to_rank(piece.substr(dash + 1));
    return first && last && *first <= *last ? last : std::nullopt;
}

}  // namespace

std::optional<int> to_count(std::string_view text) {
    const auto count = to_number<int>(text);
    return count && *count >= 1 ? count : std::nullopt;
}

std::optional<std::chrono::milliseconds> to_duration(std::string_view text) {
    double unit = 1;
    if (!text.empty()) {
        const auto place = std::string_view("smhd").find(text.back());
        if (place != std::string_view::npos) {
            unit = std::array<double, 4>{1, 60, 3600, 86400}[place];
            text.remove_suffix(1);
        }
    }
    const auto number = to_number<double>(text);
    if (!number || !std::isfinite(*number)) return {};
    const std::chrono::duration<double> length(*number * unit);
    if (length < std::chrono::milliseconds(1) || length > kLongestTimeout) return {};
    return std::chrono::duration_cast<std::chrono::milliseconds>(length);
}

bool is_rank_text(std::string_view text) {
    const auto pieces = split_commas(text);
    return std::all_of(pieces.begin(), pieces.end(),
                       [](std::string_view piece) { return range_end(piece).has_value(); });
}

int max_rank(std::string_view text) {
    int largest = 0;
    for (const std::string_view piece : split_commas(text))
        largest = std::max(largest, range_end(piece).value_or(0));
    return largest;
}

bool is_identifier(std::string_view text) {
    if (text.empty() || !is_letter(text.front())) return false;
    if (std::find(kKeywords.begin(), kKeywords.end(), text) != kKeywords.end()) return false;
    return std::all_of(text.begin(), text.end(),
                       [](char c) { return is_letter(c) || is_digit(c); });
}

std::vector<std::string_view> split_commas(std::string_view text) {
    std::vector<std::string_view> pieces;
    for (std::size_t start = 0; start <= text.size();) {
        const std::size_t comma = std::min(text.find(',', start), text.size());
        pieces.push_back(trimmed(text.substr(start, comma - start)));
        start = comma + 1;
    }
    return pieces;
}

std::size_t edit_distance(std::string_view from, std::string_view to) {
    std::vector<std::vector<std::size_t>> cost(from.size() + 1,
                                               std::vector<std::size_t>(to.size() + 1));
    for (std::size_t i = 0; i <= from.size(); ++i) {
        for (std::size_t j = 0; j <= to.size(); ++j) {
            if (i == 0 || j == 0) {
                cost[i][j] = i + j;
                continue;
            }
            const std::size_t change = from[i - 1] == to[j - 1] ? 0 : 1;
            cost[i][j] =
                std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + change});
            if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1])
                cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
        }
    }
    return cost[from.size()][to.size()];
}

}  // namespace sgpu::magics
