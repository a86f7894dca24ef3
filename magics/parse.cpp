#include "magics/parse.h"

#include <algorithm>
#include <set>

#include "magics/flags.h"
#include "magics/values.h"
#include "magics/words.h"

namespace sgpu::magics {
namespace {

// Farther words are no slip of the fingers, so nothing is suggested for them; nor are words of
// which more than half would have to change.
constexpr std::size_t kNearEnough = 3;
// What a user's word is cut to in an error, so that the error stays one short line.
constexpr std::size_t kQuotedLength = 60;

Error wrong(std::string_view magic, const std::string& what) {
    return {Errc::bad_input, std::string(magic) + ": " + what};
}

std::string in_quotes(std::string_view text) {
    std::size_t length = std::min(text.size(), kQuotedLength);
    const auto inside_character = [&] { return (text[length] & 0xC0) == 0x80; };
    while (length > 0 && length < text.size() && inside_character()) --length;
    std::string shown(text.substr(0, length));
    for (char& c : shown)
        if (static_cast<unsigned char>(c) < ' ') c = ' ';
    return "'" + shown + (length < text.size() ? "...'" : "'");
}

// The name in the table that is nearest to `word`; "" if none is near.
template <class Table>
std::string nearest(const Table& table, std::string_view word) {
    std::string best;
    std::size_t best_distance = std::min(kNearEnough, word.size() / 2) + 1;
    for (const auto& entry : table) {
        std::size_t distance = edit_distance(word, entry.name);
        // Half a name typed is a likelier slip than another name of the same length.
        if (word.size() > 3 && entry.name.starts_with(word))
            distance = std::min<std::size_t>(distance, 1);
        if (distance >= best_distance) continue;
        best = entry.name;
        best_distance = distance;
    }
    return best;
}

template <class Table>
std::string names(const Table& table) {
    std::string text;
    for (const auto& entry : table) {
        if (!text.empty()) text += ", ";
        text += entry.name;
    }
    return text;
}

std::string advice(const std::string& suggestion, const std::string& otherwise) {
    return suggestion.empty() ? "; " + otherwise : "; did you mean " + suggestion + "?";
}

Error unknown_flag(const std::string& name) {
    // Both spellings of a dash are tried: -gpus and gpus mean --gpus.
    if (name == "--help" || name == "-h" || name == "-?")
        return wrong(kCellMagic, "for help run %%distributed? in a cell of its own");
    const std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
    return wrong(kCellMagic,
                 "unknown flag " + name +
                     advice(nearest(flags(), "--" + bare), "the flags are " + names(flags())));
}

// A word that no flag takes. `last` is the flag before it, with its value.
Error stray_word(const Word& word, const Flag* last, std::string_view value) {
    const std::string what = "unexpected word " + in_quotes(word.text);
    const std::string near = word.literal ? "" : nearest(flags(), "--" + word.text);
    if (!near.empty()) return wrong(kCellMagic, what + advice(near, ""));
    if (to_count(word.text))
        return wrong(kCellMagic, what + "; write --gpus " + word.text + " for a number of GPUs");
    if (last != nullptr && last->repeats && is_identifier(word.text))
        return wrong(kCellMagic, what + "; names stand between commas: " + std::string(last->name) +
                                     ' ' + std::string(value) + ',' + word.text);
    return wrong(kCellMagic, what + "; the code goes on the lines below %%distributed");
}

// Reads flags from left to right into a command.
class CellReader {
public:
    explicit CellReader(const std::vector<Word>& words) : words_(words) {}

    Result<CellCommand> read() {
        while (place_ < words_.size()) {
            if (auto error = read_flag()) return *error;
        }
        if (auto error = check_together()) return *error;
        return std::move(command_);
    }

private:
    std::optional<Error> read_flag() {
        const Word& word = words_[place_++];
        if (!word.looks_like_flag()) return stray_word(word, last_, value_);
        const std::size_t equals = word.text.find('=');
        const std::string name = word.text.substr(0, equals);
        const Flag* flag = find_flag(name);
        if (flag == nullptr) return unknown_flag(name);
        if (!flag->repeats && !seen_.insert(flag->name).second)
            return wrong(kCellMagic, name + " is given twice; keep one of them");
        last_ = flag;
        value_.clear();
        if (equals != std::string::npos) {
            value_ = word.text.substr(equals + 1);
            if (!flag->takes_value())
                return wrong(kCellMagic, name + " takes no value, got " + in_quotes(value_) +
                                             "; write " + name + " alone");
        } else if (flag->takes_value()) {
            if (place_ == words_.size() || words_[place_].looks_like_flag())
                return wrong(kCellMagic, name + " needs a value: " + std::string(flag->wants));
            value_ = words_[place_++].text;
        }
        if (auto part = flag->apply(command_, value_))
            return wrong(kCellMagic,
                         name + " takes " + std::string(flag->wants) + ", got " + in_quotes(*part));
        return {};
    }

    std::optional<Error> check_together() const {
        const auto beyond = [this](const std::string& ranks) {
            return command_.gpus && max_rank(ranks) >= *command_.gpus;
        };
        const auto error = [this](const std::string& flag, const std::string& ranks) {
            return wrong(kCellMagic, flag + ' ' + ranks + " names rank " +
                                         std::to_string(max_rank(ranks)) + ", but --gpus " +
                                         std::to_string(*command_.gpus) + " has only ranks up to " +
                                         std::to_string(*command_.gpus - 1));
        };
        if (command_.ranks && beyond(*command_.ranks)) return error("--ranks", *command_.ranks);
        if (command_.output && beyond(command_.output->ranks))
            return error("--output", command_.output->ranks);
        return {};
    }

    const std::vector<Word>& words_;
    std::size_t place_ = 0;
    std::set<std::string_view> seen_;
    const Flag* last_ = nullptr;  // the flag read last, and its value
    std::string value_;
    CellCommand command_;
};

Error open_quote(std::string_view magic, const Words& words) {
    return wrong(magic, "a quote is not closed in " + in_quotes(words.words.back().text) +
                            "; add the closing quote");
}

}  // namespace

Result<CellCommand> parse_cell_line(std::string_view line) {
    const Words words = split_words(without_name(line, kCellMagic));
    if (words.open_quote) return open_quote(kCellMagic, words);
    return CellReader(words.words).read();
}

Result<LineCommand> parse_line(std::string_view line) {
    const Words split = split_words(without_name(line, kLineMagic));
    if (split.open_quote) return open_quote(kLineMagic, split);
    const auto& words = split.words;
    if (words.empty()) return LineCommand{};
    const Verb* verb = find_verb(words[0].text);
    if (verb == nullptr) {
        // A flag here belongs to the cell magic, one % away.
        const bool flag = words[0].looks_like_flag();
        return wrong(kLineMagic,
                     "unknown word " + in_quotes(words[0].text) +
                         (flag ? "; flags and code go into a cell that begins with %%distributed"
                               : advice(nearest(verbs(), words[0].text),
                                        "it takes one of " + names(verbs()))));
    }
    LineCommand command{.verb = verb->verb, .ranks = {}};
    const std::size_t allowed = verb->metavar.empty() ? 1 : 2;
    if (words.size() > allowed)
        return wrong(kLineMagic, std::string(verb->name) + " takes " +
                                     (allowed == 1 ? "nothing more" : "one set of ranks") +
                                     ", got " + in_quotes(words[allowed].text));
    if (words.size() == 2) {
        if (!is_rank_text(words[1].text))
            return wrong(kLineMagic, std::string(verb->name) +
                                         " takes ranks of 0 to 4095, such as 0,3-5, got " +
                                         in_quotes(words[1].text));
        command.ranks = words[1].text;
    }
    return command;
}

std::optional<CellParts> split_cell(std::string_view cell) {
    int line_number = 1;
    for (std::size_t start = 0; start < cell.size(); ++line_number) {
        const std::size_t end = std::min(cell.find('\n', start), cell.size());
        const std::string_view line = cell.substr(start, end - start);
        const std::size_t first = line.find_first_not_of(" \t\r");
        start = std::min(end + 1, cell.size());
        if (first == std::string_view::npos || line[first] == '#') continue;
        const std::string_view rest = without_name(line, kCellMagic);
        if (rest.data() == line.data()) return {};
        return CellParts{.line = rest, .body = cell.substr(start), .body_line = line_number + 1};
    }
    return {};
}

}  // namespace sgpu::magics
