// The flags of a %%distributed cell: what is read, and the one line that a mistake gets.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "magics/flags.h"
#include "magics/parse.h"
#include "magics/values.h"
#include "runtime/rank_set.h"

namespace sgpu::magics {
namespace {

using namespace std::chrono_literals;

CellCommand read(std::string_view line) {
    const auto command = parse_cell_line(line);
    EXPECT_TRUE(command) << line << ": " << (command ? "" : command.error().message);
    return command ? command.value() : CellCommand{};
}

std::string error_of(std::string_view line) {
    const auto command = parse_cell_line(line);
    if (command) return "no error";
    EXPECT_EQ(command.error().code, Errc::bad_input);
    const std::string& message = command.error().message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_TRUE(message.starts_with("%%distributed: ")) << message;
    return message.substr(std::min(message.size(), std::string("%%distributed: ").size()));
}

TEST(CellLine, WithoutFlagsLeavesEverythingToTheSession) {
    for (const auto* line : {"", "   ", "%%distributed", " %%distributed  ", "# a comment"})
        EXPECT_EQ(read(line), CellCommand{}) << line;
}

TEST(CellLine, ReadsEveryFlag) {
    const CellCommand expected = {.gpus = 8,
                                  .gpu_type = "H100",
                                  .ranks = "0,3-5",
                                  .timeout = Timeout{90s},
                                  .wait = 5min,
                                  .push = {"a", "b"},
                                  .pull = {"x"},
                                  .fresh = true,
                                  .mlflow = Mlflow::lazy,
                                  .name = "first try",
                                  .output = Output{Output::Kind::ranks, "1,3-5"}};
    EXPECT_EQ(
        read("%%distributed --gpus 8 --gpu-type H100 --ranks 0,3-5 --timeout 90 --wait 5m --push "
             "a,b --pull x --fresh --mlflow lazy --name 'first try' --output 1,3-5"),
        expected);
    EXPECT_EQ(read("--fresh --output=1,3-5 --name=\"first try\" --mlflow=lazy --pull=x --push=a,b "
                   "--timeout=90 --wait=300 --ranks=0,3-5 --gpu-type=H100 --gpus=8  # as above"),
              expected);
}

TEST(CellLine, EveryFlagOfTheTableCanBeWritten) {
    for (const Flag& flag : flags()) {
        const std::string value = flag.name == "--gpus"                             ? "2"
                                  : flag.name == "--ranks" || flag.name == "--wait" ? "0"
                                  : flag.choices.empty()                            ? "word"
                                                         : std::string(flag.choices[0]);
        const std::string line = std::string(flag.name) + (flag.takes_value() ? " " + value : "");
        EXPECT_NE(read(line), CellCommand{}) << line;
    }
}

TEST(CellLine, ReadsTimesInSecondsAndLargerUnits) {
    const std::vector<std::pair<std::string, Timeout>> cases = {
        {"5", {5s}},  {"0.5", {500ms}},  {"90s", {90s}}, {"10m", {10min}},
        {"2h", {2h}}, {"1.5h", {90min}}, {"1d", {24h}},  {"none", {}}};
    for (const auto& [text, timeout] : cases)
        EXPECT_EQ(read("--timeout " + text).timeout, timeout) << text;
    for (const std::string text : {"0", "-1", "s", "1x", "1h30", "inf", "nan", "1e99", "0.0001"})
        EXPECT_EQ(error_of("--timeout " + text),
                  "--timeout takes seconds above 0, or 90s, 10m, 2h, or none, got '" + text + "'");
}

TEST(CellLine, ReadsHowLongToWaitForGpus) {
    EXPECT_EQ(read("--wait 0").wait, 0s) << "not at all";
    EXPECT_EQ(read("--wait 10m").wait, 10min);
    EXPECT_EQ(error_of("--wait soon"), "--wait takes seconds such as 0 or 90, or 10m, got 'soon'");
}

TEST(CellLine, NamesAddUpAndStandOnceEach) {
    EXPECT_EQ(read("--push a --push b,c --push a").push, (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_EQ(read("--push 'a, b'").push, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(read("--pull größe,_x1").pull, (std::vector<std::string>{"größe", "_x1"}));
}

TEST(CellLine, NamesMustBePythonIdentifiers) {
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"2x", "2x"}, {"a,b-c", "b-c"}, {"a.b", "a.b"}, {"a,,b", "a,,b"}, {"class", "class"}};
    for (const auto& [value, part] : cases) {
        EXPECT_EQ(error_of("--push " + value),
                  "--push takes names of notebook variables, such as a,b, got '" + part + "'");
    }
}

TEST(CellLine, ReadsEveryOutputAndMlflowMode) {
    EXPECT_EQ(read("--output merged").output, (Output{Output::Kind::merged, ""}));
    EXPECT_EQ(read("--output all").output, (Output{Output::Kind::all, ""}));
    EXPECT_EQ(read("--output none").output, (Output{Output::Kind::none, ""}));
    EXPECT_EQ(read("--output 0").output, (Output{Output::Kind::ranks, "0"}));
    EXPECT_EQ(read("--mlflow always").mlflow, Mlflow::always);
    EXPECT_EQ(read("--mlflow off").mlflow, Mlflow::off);
}

TEST(CellLine, QuotesAndBackslashesWorkAsInAShell) {
    EXPECT_EQ(read(R"(--name "it's \"x\"")").name, R"(it's "x")");
    EXPECT_EQ(read(R"(--name 'a\b #c')").name, R"(a\b #c)");
    EXPECT_EQ(read(R"(--name a\ b)").name, "a b");
    EXPECT_EQ(read(R"(--name "--fresh")").name, "--fresh");
    EXPECT_EQ(read("--name=a=b").name, "a=b");
    EXPECT_EQ(error_of("--name 'a b"), "a quote is not closed in 'a b'; add the closing quote");
}

TEST(CellLine, AWrongValueIsShownWithWhatIsRight) {
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"--gpus two --nope", "--gpus takes a whole number of at least 1, got 'two'"},
        {"--gpus 0", "--gpus takes a whole number of at least 1, got '0'"},
        {"--gpus -1", "--gpus takes a whole number of at least 1, got '-1'"},
        {"--gpus 1.5", "--gpus takes a whole number of at least 1, got '1.5'"},
        {"--gpus 99999999999", "--gpus takes a whole number of at least 1, got '99999999999'"},
        {"--gpus=", "--gpus takes a whole number of at least 1, got ''"},
        {"--ranks 3-1", "--ranks takes ranks of 0 to 4095, such as 0,3-5, got '3-1'"},
        {"--mlflow on", "--mlflow takes always, lazy or off, got 'on'"},
        {"--output loud",
         "--output takes merged, all, none, or ranks such as 0 or 1,3-5, got 'loud'"},
        {"--name ''", "--name takes a name that is not empty, got ''"}};
    for (const auto& [line, message] : cases) EXPECT_EQ(error_of(line), message) << line;
}

TEST(CellLine, AFlagWithoutItsValueSaysWhatItNeeds) {
    const std::string needs = "--gpus needs a value: a whole number of at least 1";
    EXPECT_EQ(error_of("--gpus"), needs);
    EXPECT_EQ(error_of("--gpus --fresh"), needs);
    EXPECT_EQ(error_of("--fresh=yes"), "--fresh takes no value, got 'yes'; write --fresh alone");
    EXPECT_EQ(error_of("--gpus 1 --gpus 2"), "--gpus is given twice; keep one of them");
}

TEST(CellLine, AnUnknownFlagGetsTheNearestOne) {
    const std::vector<std::pair<std::string, std::string>> near = {
        {"--gpu", "--gpus"},          {"--gpsu", "--gpus"},  {"-gpus", "--gpus"},
        {"--rank", "--ranks"},        {"--out", "--output"}, {"--time", "--timeout"},
        {"--gpus-type", "--gpu-type"}};
    for (const auto& [written, meant] : near)
        EXPECT_EQ(error_of(written + " 2"),
                  "unknown flag " + written + "; did you mean " + meant + "?");
    EXPECT_EQ(
        error_of("--verbose"),
        "unknown flag --verbose; the flags are --gpus, --gpu-type, --ranks, --timeout, --wait, "
        "--push, --pull, --fresh, --mlflow, --name, --output");
}

TEST(CellLine, AWordThatNoFlagTakesSaysWhereItBelongs) {
    EXPECT_EQ(error_of("print(1)"),
              "unexpected word 'print(1)'; the code goes on the lines below %%distributed");
    EXPECT_EQ(error_of("8"), "unexpected word '8'; write --gpus 8 for a number of GPUs");
    EXPECT_EQ(error_of("gpus 8"), "unexpected word 'gpus'; did you mean --gpus?");
    EXPECT_EQ(error_of("--push a b"),
              "unexpected word 'b'; names stand between commas: --push a,b");
}

TEST(CellLine, RanksBeyondTheGpusOfTheSameLineAreRefused) {
    EXPECT_EQ(error_of("--gpus 2 --ranks 0,5"),
              "--ranks 0,5 names rank 5, but --gpus 2 has only ranks up to 1");
    EXPECT_EQ(error_of("--output 2-3 --gpus 2"),
              "--output 2-3 names rank 3, but --gpus 2 has only ranks up to 1");
    EXPECT_EQ(read("--gpus 2 --ranks 0-1").ranks, "0-1");
}

TEST(CellLine, ALongWordIsCutInTheErrorBetweenCharacters) {
    std::string word = "x";
    for (int i = 0; i < 100; ++i) word += "é";
    const std::string message = error_of(word);
    EXPECT_LT(message.size(), 150U);
    EXPECT_NE(message.find("é...'"), std::string::npos) << message;
}

// The magics stand without the runtime, so the two readers of rank sets are held together here.
TEST(CellLine, TakesTheSameRankSetsAsTheRuntime) {
    for (const std::string text : {"0", "0-3,7", "7,0-3", " 1 , 2", "4095", "4096", "0-4096", "3-1",
                                   "-1", "1-", "1,", ",1", "1,,2", "x", "1 2", "+1", "1-2-3"}) {
        const auto set = RankSet::parse(text);
        EXPECT_EQ(is_rank_text(text), set.ok()) << text;
        if (set) {
            EXPECT_EQ(max_rank(text), set.value().max()) << text;
        }
    }
    EXPECT_FALSE(is_rank_text("")) << "an empty set is no choice of ranks";
}

}  // namespace
}  // namespace sgpu::magics
