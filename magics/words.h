// words.h: a magic's line cut into words, as a shell does it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sgpu::magics {

struct Word {
    std::string text;      // without its quotes and backslashes
    std::size_t at = 0;    // where it begins in the line
    bool literal = false;  // it began with a quote or a backslash, so it is no flag

    // `--flag`, `--flag=value`, or something short of it such as -f.
    bool looks_like_flag() const;
};

struct Words {
    std::vector<Word> words;
    bool open_quote = false;  // the last word's quote is not closed
    bool open_word = false;   // the line ends inside its last word
    bool comment = false;     // the line ends in a comment
};

// Words end at blanks. '...' keeps all, "..." keeps all but backslash, # at the beginning of a
// word makes the rest of the line a comment.
Words split_words(std::string_view line);

// The line without the magic's name, if it stands in front as a word of its own.
std::string_view without_name(std::string_view line, std::string_view name);

}  // namespace sgpu::magics
