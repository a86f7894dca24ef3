// The line magic, help, completion, and finding the magic in a cell.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "magics/flags.h"
#include "magics/help.h"
#include "magics/parse.h"
#include "magics/values.h"

namespace sgpu::magics {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

std::string line_error(std::string_view line) {
    const auto command = parse_line(line);
    return command ? "no error" : command.error().message;
}

TEST(LineMagic, ReadsEveryVerbOfTheTable) {
    for (const Verb& verb : verbs()) {
        const auto command = parse_line("%distributed " + std::string(verb.name));
        ASSERT_TRUE(command) << verb.name;
        EXPECT_EQ(command.value(), (LineCommand{verb.verb, {}}));
    }
}

TEST(LineMagic, MeansStatusWithoutAWord) {
    ASSERT_TRUE(parse_line(" "));
    EXPECT_EQ(parse_line(" ").value().verb, LineCommand::Verb::status);
}

TEST(LineMagic, LogsTakeRanks) {
    const auto command = parse_line("logs 0,3-5");
    ASSERT_TRUE(command);
    EXPECT_EQ(command.value(), (LineCommand{LineCommand::Verb::logs, "0,3-5"}));
}

TEST(LineMagic, AMistakeGetsOneLineWithTheNextStep) {
    EXPECT_EQ(line_error("resart"), "%distributed: unknown word 'resart'; did you mean restart?");
    EXPECT_EQ(
        line_error("kill"),
        "%distributed: unknown word 'kill'; it takes one of status, restart, stop, logs, doctor");
    EXPECT_EQ(line_error("--gpus 2"),
              "%distributed: unknown word '--gpus'; flags and code go into a cell that begins with "
              "%%distributed");
    EXPECT_EQ(line_error("stop now"), "%distributed: stop takes nothing more, got 'now'");
    EXPECT_EQ(line_error("logs 0 1"), "%distributed: logs takes one set of ranks, got '1'");
    EXPECT_EQ(line_error("logs x"),
              "%distributed: logs takes ranks of 0 to 4095, such as 0,3-5, got 'x'");
    EXPECT_EQ(line_error("logs '1"),
              "%distributed: a quote is not closed in '1'; add the closing quote");
}

TEST(Help, NamesEveryFlagWithItsHelpAndDefault) {
    const std::string help = cell_help();
    for (const Flag& flag : flags()) {
        EXPECT_NE(help.find(std::string(flag.name) + " "), std::string::npos) << flag.name;
        EXPECT_NE(help.find(flag.help), std::string::npos) << flag.name;
        EXPECT_NE(help.find("[" + std::string(flag.standard) + "]"), std::string::npos)
            << flag.name;
    }
    for (const Verb& verb : verbs())
        EXPECT_NE(line_help().find(verb.help), std::string::npos) << verb.name;
}

TEST(Help, FitsAScreen) {
    for (const std::string& help : {cell_help(), line_help()}) {
        EXPECT_TRUE(help.ends_with(".\n"));
        std::istringstream text(help);
        for (std::string line; std::getline(text, line);) EXPECT_LE(line.size(), 100U) << line;
    }
}

TEST(Help, AlignsItsColumns) {
    const std::string help = cell_help();
    const auto column_of = [&help](std::string_view text) {
        const std::size_t place = help.find(text);
        return place - help.rfind('\n', place);
    };
    for (const Flag& flag : flags()) EXPECT_EQ(column_of(flag.help), column_of(flags()[0].help));
}

TEST(Help, ItsExamplesAreRight) {
    std::istringstream text(cell_help() + line_help());
    int examples = 0;
    for (std::string line; std::getline(text, line);) {
        if (line.starts_with("  %%distributed ")) {
            EXPECT_TRUE(parse_cell_line(line)) << line;
        } else if (line.starts_with("  %distributed ")) {
            EXPECT_TRUE(parse_line(line)) << line;
        } else {
            continue;
        }
        ++examples;
    }
    EXPECT_GE(examples, 4);
}

TEST(Completion, OffersFlagsThatAreNotGivenYet) {
    EXPECT_THAT(complete_cell_line("%%distributed --g"), ElementsAre("--gpus", "--gpu-type"));
    EXPECT_THAT(complete_cell_line("--gpus 2 --g"), ElementsAre("--gpu-type"));
    EXPECT_THAT(complete_cell_line("--push a --gpus=2 "), Contains("--push"));
    EXPECT_THAT(complete_cell_line("--push a --gpus=2 "), Not(Contains("--gpus")));
    EXPECT_EQ(complete_cell_line("").size(), flags().size());
    EXPECT_EQ(complete_cell_line("%%distributed -").size(), flags().size());
}

TEST(Completion, OffersValues) {
    EXPECT_THAT(complete_cell_line("--mlflow "), ElementsAre("always", "lazy", "off"));
    EXPECT_THAT(complete_cell_line("--mlflow l"), ElementsAre("lazy"));
    EXPECT_THAT(complete_cell_line("--mlflow=l"), ElementsAre("--mlflow=lazy"));
    EXPECT_THAT(complete_cell_line("--gpu-type H"), ElementsAre("H100", "H200"));
    EXPECT_THAT(complete_cell_line("--output "), ElementsAre("merged", "all", "none"));
}

TEST(Completion, OffersNothingWhereNothingIsKnown) {
    for (const auto* line : {"--gpus ", "--name x", "# --", "--nope=", "--fresh=", "word"})
        EXPECT_THAT(complete_cell_line(line), IsEmpty()) << line;
}

TEST(Completion, SaysWhereVariablesAreDue) {
    for (const auto* line : {"--push ", "--push a", "--push a,b", "--pull=", "--push=a,"})
        EXPECT_TRUE(wants_variables(line)) << line;
    for (const auto* line :
         {"", "--push", "--push a ", "--gpus ", "--gpus=", "--nope=", "# --push "})
        EXPECT_FALSE(wants_variables(line)) << line;
}

TEST(Completion, OfTheLineMagicOffersItsVerbs) {
    EXPECT_THAT(complete_line("%distributed st"), ElementsAre("status", "stop"));
    EXPECT_EQ(complete_line("").size(), verbs().size());
    EXPECT_THAT(complete_line("logs "), IsEmpty());
}

TEST(SplitCell, FindsTheMagicBelowBlankLinesAndComments) {
    const auto parts = split_cell("# note\n\n  %%distributed --gpus 2\nprint(1)\nprint(2)");
    ASSERT_TRUE(parts);
    EXPECT_EQ(*parts, (CellParts{" --gpus 2", "print(1)\nprint(2)", 4}));
    ASSERT_TRUE(parse_cell_line(parts->line));
    EXPECT_EQ(parse_cell_line(parts->line).value().gpus, 2);
}

TEST(SplitCell, TheBodyMayBeEmpty) {
    EXPECT_EQ(split_cell("%%distributed"), (CellParts{"", "", 2}));
    EXPECT_EQ(split_cell("%%distributed --fresh\r\n"), (CellParts{" --fresh\r", "", 2}));
}

TEST(SplitCell, LeavesOtherCellsAlone) {
    for (const auto* cell :
         {"", "# only a note", "print(1)\n%%distributed", "%%time\n%%distributed",
          "%distributed status", "%%distributedly", "%%distributed? "})
        EXPECT_FALSE(split_cell(cell)) << cell;
}

TEST(EditDistance, CountsInsertionsChangesAndSwaps) {
    EXPECT_EQ(edit_distance("", "abc"), 3U);
    EXPECT_EQ(edit_distance("gpus", "gpus"), 0U);
    EXPECT_EQ(edit_distance("gpsu", "gpus"), 1U);
    EXPECT_EQ(edit_distance("gpu", "gpus"), 1U);
    EXPECT_EQ(edit_distance("ranks", "rinks"), 1U);
}

}  // namespace
}  // namespace sgpu::magics
