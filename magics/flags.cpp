#include "magics/flags.h"

#include <algorithm>
#include <array>

#include "magics/values.h"

namespace sgpu::magics {
namespace {

using Wrong = std::optional<std::string>;

constexpr std::array<std::string_view, 9> kGpuTypes = {"H100", "H200", "B200", "A100", "A10",
                                                       "L4",   "L40S", "T4",   "V100"};
constexpr std::array<std::string_view, 3> kMlflowModes = {"always", "lazy", "off"};
constexpr std::array<std::string_view, 3> kOutputModes = {"merged", "all", "none"};
constexpr std::array<std::string_view, 1> kNoTimeout = {"none"};

Wrong apply_gpus(CellCommand& command, std::string_view value) {
    command.gpus = to_count(value);
    return command.gpus ? Wrong{} : Wrong(value);
}

Wrong apply_ranks(CellCommand& command, std::string_view value) {
    if (!is_rank_text(value)) return Wrong(value);
    command.ranks = value;
    return {};
}

Wrong apply_text(std::optional<std::string>& field, std::string_view value) {
    if (value.empty()) return Wrong(value);
    field = value;
    return {};
}

Wrong apply_timeout(CellCommand& command, std::string_view value) {
    command.timeout = Timeout{};
    if (value == "none") return {};
    command.timeout->limit = to_duration(value);
    return command.timeout->limit ? Wrong{} : Wrong(value);
}

Wrong apply_wait(CellCommand& command, std::string_view value) {
    command.wait = value == "0" ? std::chrono::milliseconds(0) : to_duration(value);
    return command.wait ? Wrong{} : Wrong(value);
}

Wrong apply_names(std::vector<std::string>& field, std::string_view value) {
    for (const std::string_view name : split_commas(value)) {
        if (!is_identifier(name)) return Wrong(name.empty() ? value : name);
        if (std::find(field.begin(), field.end(), name) == field.end()) field.emplace_back(name);
    }
    return {};
}

Wrong apply_mlflow(CellCommand& command, std::string_view value) {
    const auto found = std::find(kMlflowModes.begin(), kMlflowModes.end(), value);
    if (found == kMlflowModes.end()) return Wrong(value);
    command.mlflow = static_cast<Mlflow>(found - kMlflowModes.begin());
    return {};
}

Wrong apply_output(CellCommand& command, std::string_view value) {
    const auto found = std::find(kOutputModes.begin(), kOutputModes.end(), value);
    if (found != kOutputModes.end()) {
        command.output = Output{static_cast<Output::Kind>(found - kOutputModes.begin()), ""};
        return {};
    }
    if (!is_rank_text(value)) return Wrong(value);
    command.output = Output{Output::Kind::ranks, std::string(value)};
    return {};
}

Wrong apply_fresh(CellCommand& command, std::string_view /*value*/) {
    command.fresh = true;
    return {};
}

const std::array<Flag, 11> kFlags = {{
    {.name = "--gpus",
     .metavar = "N",
     .wants = "a whole number of at least 1",
     .help = "how many ranks, one per GPU, when this cell makes the session",
     .standard = "all GPUs; 8 CPU ranks where there is none",
     .apply = apply_gpus},
    {.name = "--gpu-type",
     .metavar = "T",
     .wants = "a GPU type such as H100",
     .help = "fail at once unless this is what is attached",
     .standard = "what is there",
     .choices = kGpuTypes,
     .apply = [](CellCommand& c, std::string_view value) { return apply_text(c.gpu_type, value); }},
    {.name = "--ranks",
     .metavar = "0,3-5",
     .wants = "ranks of 0 to 4095, such as 0,3-5",
     .help = "run on these ranks of the session only",
     .standard = "every rank",
     .apply = apply_ranks},
    {.name = "--timeout",
     .metavar = "S",
     .wants = "seconds above 0, or 90s, 10m, 2h, or none",
     .help = "end the cell after this long, with the stack of every rank",
     .standard = "3h",
     .choices = kNoTimeout,
     .apply = apply_timeout},
    {.name = "--wait",
     .metavar = "S",
     .wants = "seconds such as 0 or 90, or 10m",
     .help = "wait so long for GPUs that another notebook has, when this cell makes the session",
     .standard = "SERVERLESS_GPU_WAIT, else 30",
     .apply = apply_wait},
    {.name = "--push",
     .metavar = "a,b",
     .wants = "names of notebook variables, such as a,b",
     .help = "send these notebook variables to the ranks first",
     .standard = "nothing",
     .repeats = true,
     .variables = true,
     .apply = [](CellCommand& c, std::string_view value) { return apply_names(c.push, value); }},
    {.name = "--pull",
     .metavar = "x",
     .wants = "names of variables of the ranks, such as x,y",
     .help = "afterwards make x in the notebook a list, one value per rank",
     .standard = "nothing",
     .repeats = true,
     .variables = true,
     .apply = [](CellCommand& c, std::string_view value) { return apply_names(c.pull, value); }},
    {.name = "--fresh",
     .help = "make a new session; the state of the old one is dropped",
     .standard = "keep the session",
     .apply = apply_fresh},
    {.name = "--mlflow",
     .metavar = "MODE",
     .wants = "always, lazy or off",
     .help = "a run for this cell: always, lazy (when something is logged) or off",
     .standard = "SERVERLESS_GPU_MLFLOW, else always",
     .choices = kMlflowModes,
     .apply = apply_mlflow},
    {.name = "--name",
     .metavar = "RUN",
     .wants = "a name that is not empty",
     .help = "name of the MLflow run",
     .standard = "chosen by MLflow",
     .apply = [](CellCommand& c, std::string_view value) { return apply_text(c.name, value); }},
    {.name = "--output",
     .metavar = "WHAT",
     .wants = "merged, all, none, or ranks such as 0 or 1,3-5",
     .help = "merged (equal lines once), all (every line), none, or only some ranks: 1,3-5",
     .standard = "merged",
     .choices = kOutputModes,
     .apply = apply_output},
}};

constexpr std::array<Verb, 5> kVerbs = {{
    {"status", "", "ranks, device, memory and state of the session (also without a word)",
     LineCommand::Verb::status},
    {"restart", "", "new rank processes; what the cells left in them is dropped",
     LineCommand::Verb::restart},
    {"stop", "", "end the session and free its GPUs", LineCommand::Verb::stop},
    {"logs", "RANKS", "everything the ranks printed, such as logs 0,3-5", LineCommand::Verb::logs},
    {"doctor", "", "check driver, GPUs, NCCL, shared memory, limits and MLflow",
     LineCommand::Verb::doctor},
}};

template <class Table>
auto find_name(const Table& table, std::string_view name) -> decltype(table.data()) {
    const auto found = std::find_if(table.begin(), table.end(),
                                    [name](const auto& entry) { return entry.name == name; });
    return found == table.end() ? nullptr : &*found;
}

}  // namespace

std::span<const Flag> flags() {
    return kFlags;
}
std::span<const Verb> verbs() {
    return kVerbs;
}
const Flag* find_flag(std::string_view name) {
    return find_name(kFlags, name);
}
const Verb* find_verb(std::string_view name) {
    return find_name(kVerbs, name);
}

}  // namespace sgpu::magics
