#include <algorithm>

#include "magics/flags.h"
#include "magics/parse.h"
#include "magics/words.h"

namespace sgpu::magics {
namespace {

// The line up to the cursor: words that stand, and the one being typed ("" after a blank).
struct Typing {
    std::vector<Word> before;
    Word word;
    bool completable = true;  // false inside a comment

    explicit Typing(std::string_view line) {
        Words split = split_words(line);
        before = std::move(split.words);
        completable = !split.comment;
        if (!split.open_word || before.empty()) return;
        word = std::move(before.back());
        before.pop_back();
    }

    // The flag whose value is being typed after a blank; null if there is none.
    const Flag* awaiting() const {
        if (before.empty() || !before.back().looks_like_flag()) return nullptr;
        const Flag* flag = find_flag(before.back().text);
        return flag != nullptr && flag->takes_value() ? flag : nullptr;
    }

    bool given(const Flag& flag) const {
        return std::any_of(before.begin(), before.end(), [&flag](const Word& other) {
            return other.looks_like_flag() &&
                   other.text.substr(0, other.text.find('=')) == flag.name;
        });
    }
};

void offer_values(const Flag& flag, const std::string& typed, const std::string& prefix,
                  std::vector<std::string>& out) {
    for (const std::string_view choice : flag.choices)
        if (choice.starts_with(typed)) out.push_back(prefix + std::string(choice));
}

}  // namespace

std::vector<std::string> complete_cell_line(std::string_view line_up_to_cursor) {
    const Typing typing(without_name(line_up_to_cursor, kCellMagic));
    std::vector<std::string> found;
    if (!typing.completable) return found;
    const std::string& typed = typing.word.text;
    if (const Flag* flag = typing.awaiting()) {
        offer_values(*flag, typed, "", found);
        return found;
    }
    const std::size_t equals = typed.find('=');
    if (equals != std::string::npos) {
        const Flag* flag = find_flag(typed.substr(0, equals));
        if (flag != nullptr)
            offer_values(*flag, typed.substr(equals + 1), typed.substr(0, equals + 1), found);
        return found;
    }
    for (const Flag& flag : flags())
        if (flag.name.starts_with(typed) && (flag.repeats || !typing.given(flag)))
            found.emplace_back(flag.name);
    return found;
}

std::vector<std::string> complete_line(std::string_view line_up_to_cursor) {
    const Typing typing(without_name(line_up_to_cursor, kLineMagic));
    std::vector<std::string> found;
    if (!typing.completable || !typing.before.empty()) return found;
    for (const Verb& verb : verbs())
        if (verb.name.starts_with(typing.word.text)) found.emplace_back(verb.name);
    return found;
}

bool wants_variables(std::string_view cell_line_up_to_cursor) {
    const Typing typing(without_name(cell_line_up_to_cursor, kCellMagic));
    if (!typing.completable) return false;
    if (const Flag* flag = typing.awaiting()) return flag->variables;
    const std::size_t equals = typing.word.text.find('=');
    const Flag* flag =
        equals == std::string::npos ? nullptr : find_flag(typing.word.text.substr(0, equals));
    return flag != nullptr && flag->variables;
}

}  // namespace sgpu::magics
