// A rank's own text on its way into the two pipes, with both ends in this process.
#include "runtime/rank_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <optional>
#include <string>

#include "runtime/output_pipe.h"

namespace sgpu {
namespace {

const std::string kKey = "0123456789abcdef";
constexpr int kBoundMs = 30'000;

// Text as it is, a mark as <number>, text of another call as {call text}.
std::string show(const OutputPipe& pipe) {
    std::string shown;
    for (const auto& piece : pipe.pieces) {
        if (piece.mark != 0)
            shown += "<" + std::to_string(piece.mark) + ">";
        else if (piece.owner != 0)
            shown += "{" + std::to_string(piece.owner) + " " + piece.text + "}";
        else
            shown += piece.text;
    }
    return shown;
}

// Descriptors 1 and 2 are pipes until end(): what a test expects it checks after that, for a test
// that fails says so on descriptor 1.
class RankOutputTest : public testing::Test {
protected:
    void SetUp() override {
        std::fflush(nullptr);
        for (int i = 0; i < 2; ++i) {
            int ends[2] = {-1, -1};
            ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
            ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
            saved_.at(static_cast<std::size_t>(i)).reset(::fcntl(i + 1, F_DUPFD_CLOEXEC, 10));
            pipes_.at(static_cast<std::size_t>(i)) = OutputPipe(UniqueFd(ends[0]), kKey);
            ::dup2(ends[1], i + 1);
            ::close(ends[1]);
        }
        output_.emplace(kKey);
        output_->begin_call(7);
    }
    void TearDown() override { end(); }

    void end() {
        output_.reset();
        for (int i = 0; i < 2; ++i) {
            UniqueFd& saved = saved_.at(static_cast<std::size_t>(i));
            if (!saved) continue;
            ::dup2(saved.get(), i + 1);
            saved.reset();
            pipes_.at(static_cast<std::size_t>(i)).drain();
        }
        out_ = show(pipes_[0]);
        err_ = show(pipes_[1]);
    }

    // As write() of sys.stdout and sys.stderr does it.
    RankOutput::Flushed write(Stream stream, std::string_view text, CallId owner = 0) {
        return output_->add(stream, text, owner) ? output_->flush() : RankOutput::Flushed::done;
    }
    bool timer_rings() const {
        pollfd item{output_->timer_fd(), POLLIN, 0};
        return ::poll(&item, 1, kBoundMs) == 1;
    }

    std::array<UniqueFd, 2> saved_;
    std::array<OutputPipe, 2> pipes_;
    std::optional<RankOutput> output_;
    std::string out_;  // after end()
    std::string err_;
};

using Flushed = RankOutput::Flushed;

TEST_F(RankOutputTest, ALineGoesOutAtOnce) {
    const Flushed flushed = write(Stream::out, "line\n");
    pipes_[0].read_some();
    const std::string seen = show(pipes_[0]);
    end();
    EXPECT_EQ(flushed, Flushed::done);
    EXPECT_EQ(seen, "line\n");
}

TEST_F(RankOutputTest, ChangesOfTheStreamAreMarkedInBothPipes) {
    write(Stream::out, "a\n");
    write(Stream::err, "b\n");
    write(Stream::err, "c\n");
    write(Stream::out, "d\n");
    end();
    EXPECT_EQ(out_, "a\n<1><3>d\n");
    EXPECT_EQ(err_, "<1>b\nc\n<3>");
}

TEST_F(RankOutputTest, AMessageHasAnEvenMarkBehindWhatWasWrittenBefore) {
    write(Stream::out, "begun");
    const std::uint32_t mark = output_->mark(RankOutput::MarkFor::display);
    write(Stream::out, " later\n");
    end();
    EXPECT_EQ(mark, 2U);
    EXPECT_EQ(out_, "begun<2> later\n");
    EXPECT_EQ(err_, "<2>");
}

TEST_F(RankOutputTest, WhatAFloodHasGatheredComesWhenTheTimerRings) {
    std::string written;
    bool gathered = false;
    for (int i = 0; i < 500 || !gathered; ++i) {
        const std::string line = "line " + std::to_string(i) + "\n";
        written += line;
        gathered = !output_->add(Stream::out, line, 0);
        if (!gathered) (void)output_->flush();
    }
    const bool rang = timer_rings();
    output_->flush_due();
    pipes_[0].read_some();
    const std::string seen = show(pipes_[0]);
    end();
    EXPECT_TRUE(rang) << "nobody would ever write what is left";
    EXPECT_EQ(seen, written);
}

TEST_F(RankOutputTest, AFullPipeHoldsUpTheWriterForAMomentAndLosesNothing) {
    ::fcntl(1, F_SETPIPE_SZ, 4096);
    const std::string text(300'000, 'x');
    const Flushed full = write(Stream::out, text);
    output_->flush_due();  // the agent's: it must come back
    for (std::size_t read = 0; read < 2 * text.size(); read += 4096) {
        pipes_[0].read_some();
        output_->flush_due();
    }
    const Flushed flushed = output_->flush();
    end();
    EXPECT_EQ(full, Flushed::full);
    EXPECT_EQ(flushed, Flushed::done);
    EXPECT_EQ(out_, text);
}

TEST_F(RankOutputTest, TheEndOfACallNeedsNoMarkOnceAllIsReadButADisplayDoes) {
    write(Stream::out, "line\n");
    const std::uint32_t unread = output_->mark(RankOutput::MarkFor::done);
    for (OutputPipe& pipe : pipes_) pipe.read_some();
    const std::uint32_t read = output_->mark(RankOutput::MarkFor::done);
    const std::uint32_t display = output_->mark(RankOutput::MarkFor::display);
    end();
    EXPECT_EQ(unread, 2U);
    EXPECT_EQ(read, 2U);
    EXPECT_EQ(display, 4U);
    EXPECT_EQ(out_, "line\n<2><4>");
    EXPECT_EQ(err_, "<2><4>");
}

TEST_F(RankOutputTest, ARedirectedDescriptorTakesTheTextAndMarksStillGoToThePool) {
    UniqueFd file(::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (!file) GTEST_SKIP() << "no O_TMPFILE here";
    ::dup2(file.get(), 1);
    write(Stream::err, "said\n");
    write(Stream::out, "into the file\n");
    const std::uint32_t mark = output_->mark(RankOutput::MarkFor::display);
    std::array<char, 100> room{};
    const ssize_t size = ::pread(file.get(), room.data(), room.size(), 0);
    end();
    EXPECT_EQ(std::string(room.data(), static_cast<std::size_t>(std::max<ssize_t>(0, size))),
              "into the file\n");
    EXPECT_EQ(mark, 2U);
    EXPECT_EQ(out_, "<1><2>");
    EXPECT_EQ(err_, "said\n<1><2>");
}

TEST_F(RankOutputTest, TextOfAnotherCallIsNamedAndTheRunningOneNeedsNoName) {
    write(Stream::out, "mine\n", 7);
    write(Stream::out, "of a thread\n", 5);
    write(Stream::out, "mine again\n");
    end();
    EXPECT_EQ(out_, "mine\n{5 of a thread\n}mine again\n");
}

TEST_F(RankOutputTest, AForkedChildWritesOnlyItsOwn) {
    (void)output_->add(Stream::out, "of the parent ", 0);
    const pid_t child = ::fork();
    if (child == 0) {
        const bool now = output_->add(Stream::out, "of the child\n", 0);
        ::_exit(now && output_->flush() == Flushed::done ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    write(Stream::out, "to its end\n");
    end();
    EXPECT_EQ(status, 0);
    EXPECT_EQ(out_, "of the child\nof the parent to its end\n");
}

TEST_F(RankOutputTest, ADescriptorThatCannotBeWrittenFailsAndHoldsNothingBack) {
    UniqueFd unwritable(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ::dup2(unwritable.get(), 1);
    const Flushed flushed = write(Stream::out, "lost\n");
    const Flushed after = output_->flush();
    end();
    EXPECT_EQ(flushed, Flushed::failed);
    EXPECT_EQ(after, Flushed::done);
}

}  // namespace
}  // namespace sgpu
