// parse.h: the text of a %%distributed cell or a %distributed line, as a command value.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"

namespace sgpu::magics {

// Everything here is pure: text in, value out. Nothing is looked up on the machine, so the number
// of GPUs, their type and the ranks that the session has are checked by whoever runs the command.
//
// Errors: always Errc::bad_input, with one line that begins with the name of the magic, names the
// word that is wrong, and says what to write instead.
//
// Threads: no state; any.

struct Timeout {
    std::optional<std::chrono::milliseconds> limit;  // absent: `--timeout none`
    friend bool operator==(const Timeout&, const Timeout&) = default;
};

enum class Mlflow { always, lazy, off };

// Which ranks' lines are shown, and whether equal lines are shown once.
struct Output {
    enum class Kind { merged, all, none, ranks };
    Kind kind = Kind::merged;
    std::string ranks;  // for Kind::ranks, as RankSet::parse reads it, else ""
    friend bool operator==(const Output&, const Output&) = default;
};

// The flags of one %%distributed cell. What is absent was not written: its default is the
// session's affair.
struct CellCommand {
    std::optional<int> gpus;              // at least 1
    std::optional<std::string> gpu_type;  // as written; not empty
    std::optional<std::string> ranks;     // as RankSet::parse reads it; not empty
    std::optional<Timeout> timeout;
    std::optional<std::chrono::milliseconds> wait;
    std::vector<std::string> push;  // Python identifiers, each once, in the order written
    std::vector<std::string> pull;  // the same
    bool fresh = false;
    std::optional<Mlflow> mlflow;
    std::optional<std::string> name;  // not empty
    std::optional<Output> output;

    friend bool operator==(const CellCommand&, const CellCommand&) = default;
};

struct LineCommand {
    enum class Verb { status, restart, stop, logs, doctor };
    Verb verb = Verb::status;          // also what a bare `%distributed` means
    std::optional<std::string> ranks;  // only for logs; absent: all

    friend bool operator==(const LineCommand&, const LineCommand&) = default;
};

// Reads the flags after `%%distributed`; the magic's name itself may stand in front. Words are
// split as a shell does it (quotes, backslash, # begins a comment); both `--flag value` and
// `--flag=value` are read.
Result<CellCommand> parse_cell_line(std::string_view line);

// Reads the words after `%distributed`; the magic's name itself may stand in front.
Result<LineCommand> parse_line(std::string_view line);

// A cell that begins with %%distributed, perhaps below blank lines and comments.
struct CellParts {
    std::string_view line;  // what follows the name on its line
    std::string_view body;  // all lines below
    int body_line = 1;      // the number of the body's first line in the cell, counted from 1
    friend bool operator==(const CellParts&, const CellParts&) = default;
};

// The parts, as views into `cell`; absent if the cell does not begin with %%distributed.
std::optional<CellParts> split_cell(std::string_view cell);

// What can stand in place of the last word of a line whose text up to the cursor is given. The
// names of variables after --push are not known here; wants_variables() says when they are due.
std::vector<std::string> complete_cell_line(std::string_view line_up_to_cursor);
std::vector<std::string> complete_line(std::string_view line_up_to_cursor);
bool wants_variables(std::string_view cell_line_up_to_cursor);

}  // namespace sgpu::magics
