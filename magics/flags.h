// flags.h: the one table of what may follow %%distributed and %distributed. Parsing, help, errors
// and completion all read it, so a flag that is added here is in all of them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "magics/parse.h"

namespace sgpu::magics {

inline constexpr std::string_view kCellMagic = "%%distributed";
inline constexpr std::string_view kLineMagic = "%distributed";

struct Flag {
    std::string_view name;                           // with its dashes
    std::string_view metavar = {};                   // "" for a flag that takes no value
    std::string_view wants = {};                     // completes "--gpus takes ..."
    std::string_view help = {};                      // one line
    std::string_view standard = {};                  // the default, in words
    std::span<const std::string_view> choices = {};  // values offered for completion
    bool repeats = false;                            // may be given again and then adds
    bool variables = false;                          // its values name notebook variables

    // Puts the value into the command. Gives back the part of it that is wrong, if one is.
    std::optional<std::string> (*apply)(CellCommand& command, std::string_view value) = nullptr;

    bool takes_value() const { return !metavar.empty(); }
};

struct Verb {
    std::string_view name;
    std::string_view metavar;  // "" if nothing may follow
    std::string_view help;
    LineCommand::Verb verb;
};

std::span<const Flag> flags();
std::span<const Verb> verbs();

// Null if there is none of that name.
const Flag* find_flag(std::string_view name);
const Verb* find_verb(std::string_view name);

}  // namespace sgpu::magics
