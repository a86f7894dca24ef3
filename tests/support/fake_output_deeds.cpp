// What fake ranks write, and how they fail to.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "runtime/output_pipe.h"
#include "tests/support/fake_deeds.h"

namespace sgpu::test {
namespace {

void flood(const FakeRank& rank, const std::string& lines) {
    const int count = std::atoi(lines.c_str());
    for (int i = 0; i < count; ++i) {
        print(1, "line " + std::to_string(i) + " of a flood\n");
        print(2, "error " + std::to_string(i) + " of a flood\n");
    }
    rank.answer(true, "flooded");
}

void flood_for_ever(const FakeRank&, const std::string&) {
    say_begun();
    for (;;) print(1, std::string(60'000, 'x') + "\n");
}

void no_newline(const FakeRank& rank, const std::string& megabytes) {
    for (int i = 0; i < std::atoi(megabytes.c_str()); ++i) print(1, std::string(1'000'000, 'y'));
    rank.answer(true, "no newline");
}

void displays(const FakeRank& rank, const std::string& count) {
    for (int i = 0; i < std::atoi(count.c_str()); ++i) {
        print(1, "before " + std::to_string(i) + "\n");
        const auto mark = rank.agent.output().mark(RankOutput::MarkFor::display);
        rank.agent.send(Display{rank.call, mark, "display_data"}, {std::to_string(i)}, -1);
    }
    print(2, "an error\n");
    rank.agent.output().mark(RankOutput::MarkFor::stream_switch);
    print(1, "after\n");
    rank.answer(true, "");
}

// A mark in one pipe only, as from a rank that found the other one full for too long.
void half_mark(const FakeRank& rank, const std::string&) {
    print(1, "one\n" + mark_bytes(rank.key, 1) + "two\n");
    rank.answer(true, "");
}

// A mark that promises a message, and more output after it than a pipe holds.
void mark_alone(const FakeRank& rank, const std::string&) {
    rank.agent.output().mark(RankOutput::MarkFor::display);
    for (int i = 0; i < 40; ++i) print(1, std::string(50'000, 'z') + "\n");
    rank.answer(true, "");
}

void answer_without_mark(const FakeRank& rank, const std::string&) {
    rank.agent.end_work();
    print(1, "one\n" + mark_bytes(rank.key, 1) + "two\n");
    rank.agent.send(Done{rank.call, true, 0, 0, 0}, {}, -1);
}

void leave_a_printer(const FakeRank&, const std::string&) {
    if (::fork() == 0)
        for (;;) print(1, std::string(60'000, 'p') + "\n");
    ::_exit(4);
}

// Prints after its answer, once somebody opens the FIFO that it makes.
void late_line(const FakeRank& rank, const std::string& path) {
    ::mkfifo(path.c_str(), 0600);
    rank.answer(true, "");
    const UniqueFd go(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    print(1, "late\n");
}

}  // namespace

const std::map<std::string, Deed>& output_deeds() {
    static const std::map<std::string, Deed> deeds = {{"flood", flood},
                                                      {"flood-for-ever", flood_for_ever},
                                                      {"no-newline", no_newline},
                                                      {"displays", displays},
                                                      {"half-mark", half_mark},
                                                      {"mark-alone", mark_alone},
                                                      {"answer-without-mark", answer_without_mark},
                                                      {"leave-a-printer", leave_a_printer},
                                                      {"late-line", late_line}};
    return deeds;
}

}  // namespace sgpu::test
