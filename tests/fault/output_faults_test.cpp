// output_faults_test.cpp: what ranks write, in what order, and ranks that leave others with the
// pipes.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "tests/support/pool_test.h"

namespace sgpu::test {
namespace {

using namespace std::chrono_literals;
using OutputFaults = PoolTest;

std::string content(const std::string& path) {
    std::ifstream file(path);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
}

TEST_F(OutputFaults, AFloodLosesNoLineAndKeepsItsOrder) {
    start();
    constexpr int kLines = 20'000;
    const auto ticket = begin(pool_->take(1), "flood:" + std::to_string(kLines));
    const auto outcomes = finish(ticket);
    EXPECT_EQ(outcomes[0].state, RankState::returned);
    std::string out;
    std::string err;
    for (const OutputEvent& event : events()) (event.type == "stdout" ? out : err) += event.content;
    std::string wanted_out;
    std::string wanted_err;
    for (int i = 0; i < kLines; ++i) {
        wanted_out += "line " + std::to_string(i) + " of a flood\n";
        wanted_err += "error " + std::to_string(i) + " of a flood\n";
    }
    EXPECT_TRUE(out == wanted_out) << out.size() << " bytes, not " << wanted_out.size();
    EXPECT_TRUE(err == wanted_err) << err.size() << " bytes, not " << wanted_err.size();
    EXPECT_EQ(content(pool_->log_path(ticket->id(), 0)).size(), out.size() + err.size());
}

TEST_F(OutputFaults, ALineWithoutAnEndDoesNotHoldTheCall) {
    start();
    const auto ticket = begin(pool_->take(2), "no-newline:4");
    const auto outcomes = finish(ticket);
    EXPECT_EQ(outcomes[1].state, RankState::returned);
    EXPECT_EQ(content(pool_->log_path(ticket->id(), 1)).size(), 4'000'000U);
}

TEST_F(OutputFaults, DisplaysTakeTheirPlaceInTheText) {
    start();
    EXPECT_EQ(call(1, "displays:30")[0].state, RankState::returned);
    std::string shown;
    for (const OutputEvent& event : events())
        shown += event.ranks.empty() ? event.content : "<" + event.content + ">";
    std::string wanted;
    for (int i = 0; i < 30; ++i)
        wanted += "before " + std::to_string(i) + "\n<" + std::to_string(i) + ">";
    EXPECT_EQ(shown, wanted + "an error\nafter\n");
}

TEST_F(OutputFaults, AMarkThatReachedOnePipeOnlyHoldsNothingUp) {
    start();
    const auto outcomes = call(1, "half-mark");
    EXPECT_EQ(outcomes[0].state, RankState::returned);
    EXPECT_EQ(text(), "one\ntwo\n");
}

TEST_F(OutputFaults, AMarkWhoseMessageNeverComesHoldsNothingUp) {
    start();
    const auto outcomes = call(1, "mark-alone");
    EXPECT_EQ(outcomes[0].state, RankState::returned);
    EXPECT_EQ(text().size(), 40U * 50'001U);
}

TEST_F(OutputFaults, AnAnswerWithoutAMarkComesAfterWhatWasWritten) {
    start();
    const auto outcomes = call(1, "answer-without-mark");
    EXPECT_EQ(outcomes[0].state, RankState::returned);
    EXPECT_EQ(text(), "one\ntwo\n");
}

TEST_F(OutputFaults, AChildThatHoldsThePipesDelaysNoDeath) {
    start();
    const auto outcomes = call(2, "fork-and-leave:exit|ok");
    EXPECT_EQ(outcomes[0].state, RankState::died);
    EXPECT_EQ(WEXITSTATUS(outcomes[0].status), 0);
    EXPECT_EQ(outcomes[1].state, RankState::returned);
}

TEST_F(OutputFaults, AChildThatPrintsForEverDelaysNoDeath) {
    start();
    const auto outcomes = call(1, "leave-a-printer");
    EXPECT_EQ(outcomes[0].state, RankState::died);
    EXPECT_EQ(WEXITSTATUS(outcomes[0].status), 4);
}

TEST_F(OutputFaults, ADaemonOutlivesItsRankButNotThePool) {
    start();
    EXPECT_EQ(call(2, "daemon|daemon:exit")[0].state, RankState::returned);
    pool_->retire(last_);
    EXPECT_EQ(call(1, "ok")[0].state, RankState::returned);
}

TEST_F(OutputFaults, LateLinesGoToTheCallOfTheirRank) {
    start();
    const auto children = pool_->take(1);
    const auto first = begin(children, "late-line:" + (folder_ / "go"));
    finish(first);
    EXPECT_EQ(text(), "");
    const UniqueFd go(::open((folder_ / "go").c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_TRUE(readable(pool_->output_fd()));
    const auto late = events();
    ASSERT_FALSE(late.empty());
    EXPECT_EQ(late[0].call, first->id());
    EXPECT_EQ(late[0].content, "late\n");
}

TEST_F(OutputFaults, ALogIsPrivate) {
    start();
    const auto ticket = begin(pool_->take(1), "ok");
    finish(ticket);
    struct stat info {};
    ASSERT_EQ(::stat(pool_->log_path(ticket->id(), 0).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777U, 0600U);
    EXPECT_EQ(content(pool_->log_path(ticket->id(), 0)), "hello\n");
}

}  // namespace
}  // namespace sgpu::test
