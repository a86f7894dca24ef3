#include "runtime/gpu/gpu_type.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

namespace sgpu {
namespace {

constexpr std::array<std::string_view, 30> kTypes = {
    "GB300", "GB200", "B300", "B200", "GH200", "H200", "H100", "H800", "H20", "L40S",
    "L40",   "L20",   "L4",   "L2",   "A100",  "A800", "A40",  "A30",  "A16", "A10G",
    "A10",   "A2",    "T4",   "V100", "P100",  "P40",  "P4",   "M60",  "K80", "B100"};

// Words that do not tell one product from another.
constexpr std::array<std::string_view, 7> kNoise = {"NVIDIA", "GEFORCE", "TESLA",     "QUADRO",
                                                    "GPU",    "LAPTOP",  "GENERATION"};

template <class Table>
bool contains(const Table& table, std::string_view word) {
    return std::find(table.begin(), table.end(), word) != table.end();
}

std::string upper(std::string_view text) {
    std::string result(text);
    for (char& c : result) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return result;
}

std::vector<std::string_view> words_of(std::string_view text, std::string_view separators) {
    std::vector<std::string_view> words;
    while (!text.empty()) {
        const auto end = std::min(text.find_first_of(separators), text.size());
        if (end > 0) words.push_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return words;
}

// "H100" for "8xH100", as in "GPU_8xH100".
std::string without_count(std::string word) {
    const auto digits = word.find_first_not_of("0123456789");
    if (digits == 0 || digits == std::string::npos || word[digits] != 'X') return word;
    return word.substr(digits + 1);
}

std::string own_name(std::string_view name) {
    std::string result;
    for (const std::string_view word : words_of(name, " \t")) {
        if (contains(kNoise, upper(word))) continue;
        if (!result.empty()) result += ' ';
        result += word;
    }
    return result.empty() ? std::string(name) : result;
}

}  // namespace

std::string gpu_type_of(std::string_view name) {
    // A workstation card may have a server card's name in its own: RTX A6000, RTX PRO 6000.
    const std::string whole = upper(name);
    if (whole.find("RTX") == std::string::npos) {
        for (const std::string_view part : words_of(whole, " \t-_/(),")) {
            std::string word = without_count(std::string(part));
            if (contains(kTypes, word)) return word;
        }
    }
    return own_name(name);
}

std::span<const std::string_view> known_gpu_types() {
    return kTypes;
}

}  // namespace sgpu
