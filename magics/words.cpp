#include "magics/words.h"

namespace sgpu::magics {
namespace {

bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// Reads one word from `place` on and leaves `place` behind it. True if a quote stayed open.
bool read_word(std::string_view line, std::size_t& place, Word& word) {
    char quote = 0;
    for (; place < line.size(); ++place) {
        const char c = line[place];
        if (quote == 0 && is_blank(c)) break;
        if (c == '\\' && quote != '\'' && place + 1 < line.size()) {
            word.text += line[++place];
        } else if (quote != 0 && c == quote) {
            quote = 0;
        } else if (quote == 0 && (c == '\'' || c == '"')) {
            quote = c;
        } else {
            word.text += c;
        }
    }
    return quote != 0;
}

}  // namespace

bool Word::looks_like_flag() const {
    if (literal || text.size() < 2 || text[0] != '-') return false;
    return text[1] < '0' || text[1] > '9';  // -1 is a wrong number, not a wrong flag
}

Words split_words(std::string_view line) {
    Words result;
    for (std::size_t place = 0; place < line.size();) {
        if (is_blank(line[place])) {
            ++place;
            continue;
        }
        if (line[place] == '#') {
            result.comment = true;
            break;
        }
        const char first = line[place];
        Word word{
            .text = {}, .at = place, .literal = first == '\'' || first == '"' || first == '\\'};
        result.open_quote = read_word(line, place, word);
        result.open_word = place == line.size();
        result.words.push_back(std::move(word));
    }
    return result;
}

std::string_view without_name(std::string_view line, std::string_view name) {
    std::string_view rest = line;
    while (!rest.empty() && is_blank(rest.front())) rest.remove_prefix(1);
    if (!rest.starts_with(name)) return line;
    rest.remove_prefix(name.size());
    return rest.empty() || is_blank(rest.front()) ? rest : line;
}

}  // namespace sgpu::magics
