#include "magics/help.h"

#include <algorithm>

#include "magics/flags.h"

namespace sgpu::magics {
namespace {

constexpr std::size_t kWidth = 100;  // columns of the help text
constexpr std::size_t kGap = 2;      // blanks between columns

std::string heading(std::string_view name, std::string_view metavar) {
    return std::string(name) + (metavar.empty() ? "" : " ") + std::string(metavar);
}

template <class Table>
std::size_t widest_heading(const Table& table) {
    std::size_t widest = 0;
    for (const auto& entry : table)
        widest = std::max(widest, heading(entry.name, entry.metavar).size());
    return widest;
}

// "  heading   help  note", the note on a line of its own where it would not fit.
std::string row(const std::string& head, std::size_t column, std::string_view help,
                const std::string& note) {
    std::string line = std::string(kGap, ' ') + head;
    line.resize(kGap + column + kGap, ' ');
    line += help;
    if (note.empty()) return line + '\n';
    if (line.size() + kGap + note.size() <= kWidth)
        return line + std::string(kGap, ' ') + note + '\n';
    return line + '\n' + std::string(kGap + column + kGap, ' ') + note + '\n';
}

}  // namespace

std::string cell_help() {
    std::string text =
        std::string(kCellMagic) +
        " [flags]: run this cell on every rank of the session.\n\n"
        "Each rank has a namespace of its own that lives until restart. Magics, !shell and await\n"
        "work inside; the value of the last expression is shown, once where ranks agree.\n\n"
        "Flags (--flag value or --flag=value):\n";
    const std::size_t column = widest_heading(flags());
    for (const Flag& flag : flags())
        text += row(heading(flag.name, flag.metavar), column, flag.help,
                    "[" + std::string(flag.standard) + "]");
    text +=
        "\nExamples:\n"
        "  %%distributed --gpus 8 --push config --pull loss\n"
        "  %%distributed --ranks 0 --output all\n"
        "  %%distributed --fresh --gpus 4 --timeout 10m --name \"first try\"\n\n"
        "See also: %distributed? for status, restart, stop, logs and doctor.\n";
    return text;
}

std::string line_help() {
    std::string text =
        std::string(kLineMagic) + " WORD: look after the session of %%distributed cells.\n\n";
    const std::size_t column = widest_heading(verbs());
    for (const Verb& verb : verbs())
        text += row(heading(verb.name, verb.metavar), column, verb.help, "");
    text +=
        "\nExamples:\n"
        "  %distributed status\n"
        "  %distributed logs 3\n\n"
        "See also: %%distributed? for the flags of a cell.\n";
    return text;
}

}  // namespace sgpu::magics
