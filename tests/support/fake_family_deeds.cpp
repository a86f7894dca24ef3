#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

#include "runtime/unique_fd.h"
#include "tests/support/fake_deeds.h"
#include "tests/support/fake_rank.h"

namespace sgpu::test {
namespace {

void answer_or_exit(const FakeRank& rank, const std::string& then, const std::string& text) {
    if (then == "exit") ::_exit(0);
    rank.answer(true, text);
}

void say_left(pid_t pid) {
    print(1, "left " + std::to_string(pid) + "\n");
}

void fork_and_leave(const FakeRank& rank, const std::string& then) {
    if (::fork() == 0) pause_for_ever();
    answer_or_exit(rank, then, "left a child");
}

// As a shell with job control does.
void group_then(const FakeRank& rank, const std::string& then) {
    const pid_t child = ::fork();
    if (child == 0) pause_for_ever();
    ::setpgid(child, child);
    say_left(child);
    answer_or_exit(rank, then, "left a group");
}

// Of a rank that does not want to be told of its orphans.
void orphan_then(const FakeRank& rank, const std::string& then) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    const pid_t middle = ::fork();
    if (middle == 0) {
        const pid_t orphan = ::fork();
        if (orphan == 0) pause_for_ever();
        say_left(orphan);
        ::_exit(0);
    }
    ::waitpid(middle, nullptr, 0);
    answer_or_exit(rank, then, "left an orphan");
}

// Detached in every way there is; its new program has an environment without our mark.
void daemon_then(const FakeRank& rank, const std::string& then) {
    std::array<int, 2> ready{};
    if (::pipe2(ready.data(), O_CLOEXEC) != 0) ::_exit(90);
    if (::fork() == 0) {
        ::setsid();
        if (::fork() != 0) ::_exit(0);
        ::signal(SIGTERM, SIG_IGN);
        ::signal(SIGHUP, SIG_IGN);
        say_left(::getpid());
        char* const nothing[] = {nullptr};
        ::execle("/bin/sleep", "sleep", "100000", nullptr, nothing);
        ::_exit(91);
    }
    ::wait(nullptr);
    ::close(ready[1]);
    char byte = 0;
    (void)!::read(ready[0], &byte, 1);  // its end: the daemon runs its own program
    answer_or_exit(rank, then, "left a daemon");
}

// Each generation lives for a moment in a session of its own and leaves a child.
void respawn(const FakeRank& rank, const std::string& generations) {
    if (::fork() == 0) {
        for (int left = std::atoi(generations.c_str()); left > 0; --left) {
            ::setsid();
            if (::fork() != 0) ::_exit(0);
            ::poll(nullptr, 0, 1);
        }
        ::_exit(0);
    }
    rank.answer(true, "respawning");
}

// Leaves that many orphans, which end at once, and exits, when somebody opens the FIFO.
void orphans_then_exit(const FakeRank&, const std::string& argument) {
    const auto comma = argument.find(',');
    say_begun();
    const UniqueFd go(::open(argument.substr(comma + 1).c_str(), O_RDONLY | O_CLOEXEC));
    for (int left = std::atoi(argument.c_str()); left > 0; --left) {
        const pid_t middle = ::fork();
        if (middle == 0) {
            (void)!::fork();
            ::_exit(0);
        }
        ::waitpid(middle, nullptr, 0);
    }
    ::_exit(9);
}

}  // namespace

const std::map<std::string, Deed>& family_deeds() {
    static const std::map<std::string, Deed> deeds = {{"fork-and-leave", fork_and_leave},
                                                      {"group", group_then},
                                                      {"orphan", orphan_then},
                                                      {"daemon", daemon_then},
                                                      {"respawn", respawn},
                                                      {"orphans-then-exit", orphans_then_exit}};
    return deeds;
}

}  // namespace sgpu::test
