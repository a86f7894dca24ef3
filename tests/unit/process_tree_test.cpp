#include "runtime/process_tree.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "runtime/unique_fd.h"

namespace sgpu {
namespace {

constexpr int kBoundMs = 30'000;

// A process of this test whose descendants all hold one pipe. `work` runs in it and reports that it
// is ready by a byte. When nothing of it is left, the pipe is at its end.
class Family {
public:
    explicit Family(void (*work)()) {
        int ends[2] = {-1, -1};
        EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
        pipe_.reset(ends[0]);
        pid_ = ::fork();
        if (pid_ == 0) {
            write_end = ends[1];
            work();
            ::_exit(0);
        }
        ::close(ends[1]);
    }
    ~Family() {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    Family(const Family&) = delete;
    Family& operator=(const Family&) = delete;

    pid_t pid() const { return pid_; }
    // One byte from the family, or 0 at its end.
    char next() const {
        pollfd item{pipe_.get(), POLLIN, 0};
        char byte = 0;
        EXPECT_EQ(::poll(&item, 1, kBoundMs), 1) << "the family is silent";
        return ::read(pipe_.get(), &byte, 1) == 1 ? byte : '\0';
    }

    static void say(char byte) { (void)!::write(write_end, &byte, 1); }
    [[noreturn]] static void wait_for_ever() {
        for (;;) ::pause();
    }

private:
    static int write_end;
    UniqueFd pipe_;
    pid_t pid_ = 0;
};

int Family::write_end = -1;

void parent_child_grandchild() {
    if (::fork() == 0) {
        ::setsid();
        if (::fork() == 0) {
            ::prctl(PR_SET_NAME, "a) R 1 (b");  // as misleading as a name can be
            Family::say('r');
        }
    }
    Family::wait_for_ever();
}

bool has(const std::vector<Process>& list, pid_t pid) {
    return std::any_of(list.begin(), list.end(), [pid](const Process& p) { return p.pid == pid; });
}

TEST(ProcessTree, FindsItselfAmongAllWithItsParents) {
    const auto all = all_processes();
    const auto self =
        std::find_if(all.begin(), all.end(), [](const Process& p) { return p.pid == ::getpid(); });
    ASSERT_NE(self, all.end());
    EXPECT_EQ(self->parent, ::getppid());
    EXPECT_EQ(self->group, ::getpgrp());
    EXPECT_EQ(self->session, ::getsid(0));
    EXPECT_GT(self->start_time, 0U);
}

TEST(ProcessTree, DescendantsComeParentsFirstWhateverTheirNamesAndSessions) {
    const Family family(parent_child_grandchild);
    ASSERT_EQ(family.next(), 'r');
    const auto below = descendants(family.pid());
    ASSERT_EQ(below.size(), 2U);
    EXPECT_EQ(below[0].parent, family.pid());
    EXPECT_EQ(below[1].parent, below[0].pid);
    EXPECT_FALSE(has(below, family.pid()));
    EXPECT_TRUE(has(descendants(::getpid()), below[1].pid));
    EXPECT_TRUE(has(own_children(), family.pid()));
    EXPECT_FALSE(has(own_children(), below[0].pid));
    kill_tree(family.pid());
    EXPECT_EQ(family.next(), '\0') << "something of the tree is left";
}

TEST(ProcessTree, KillsATreeThatIsStoppedAndIgnoresSignals) {
    const Family family([] {
        ::signal(SIGTERM, SIG_IGN);
        ::signal(SIGINT, SIG_IGN);
        const pid_t child = ::fork();
        if (child == 0) {
            ::kill(::getpid(), SIGSTOP);
            Family::wait_for_ever();
        }
        ::waitpid(child, nullptr, WUNTRACED);
        Family::say('r');
        Family::wait_for_ever();
    });
    ASSERT_EQ(family.next(), 'r');
    kill_tree(family.pid());
    EXPECT_EQ(family.next(), '\0');
}

TEST(ProcessTree, KillsATreeThatForksAllTheTime) {
    const Family family([] {
        for (int i = 0; i < 3; ++i) {
            if (::fork() != 0) continue;
            for (int n = 0; n < 100'000; ++n) {
                const pid_t child = ::fork();
                if (child == 0) ::_exit(0);
                ::waitpid(child, nullptr, 0);
            }
            ::_exit(0);
        }
        Family::say('r');
        Family::wait_for_ever();
    });
    ASSERT_EQ(family.next(), 'r');
    kill_tree(family.pid());
    EXPECT_EQ(family.next(), '\0');
}

TEST(ProcessTree, KillingATreeThatIsGoneDoesNothing) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    kill_tree(child);
}

void two_children_one_spared() {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::setsid();
    const pid_t spared = ::fork();
    if (spared == 0) {
        ::setpgid(0, 0);
        if (::fork() == 0) Family::wait_for_ever();
        Family::wait_for_ever();
    }
    ::setpgid(spared, spared);
    if (::fork() == 0) {
        // Detached from all: only the subreaper finds it.
        if (::fork() == 0) {
            ::setsid();
            if (::fork() == 0) Family::wait_for_ever();
            ::_exit(0);
        }
        ::_exit(0);
    }
    kill_all_descendants({spared});
    const auto left = descendants(::getpid());
    const bool only_spared =
        !left.empty() && std::all_of(left.begin(), left.end(), [spared](const Process& p) {
            return p.pid == spared || p.parent == spared;
        });
    Family::say(only_spared ? 's' : 'x');
    kill_all_descendants({});
    Family::say(descendants(::getpid()).empty() ? 'e' : 'x');
}

TEST(ProcessTree, ASubreaperKillsAllButTheSparedAndThenAll) {
    const Family family(two_children_one_spared);
    EXPECT_EQ(family.next(), 's');
    EXPECT_EQ(family.next(), 'e');
    EXPECT_EQ(family.next(), '\0');
}

TEST(ProcessTree, KillsWhatHasTheMarkInItsEnvironmentAndNothingElse) {
    const std::string mark = "SGPU_TEST_MARK=" + std::to_string(::getpid());
    static std::string marked;
    static std::string similar;
    marked = mark;
    similar = mark + "0";
    const auto start = [](std::string& variable) {
        const pid_t pid = ::fork();
        if (pid == 0) {
            char* const environment[] = {variable.data(), nullptr};
            ::execle("/bin/sleep", "sleep", "100000", nullptr, environment);
            ::_exit(1);
        }
        return pid;
    };
    const pid_t with = start(marked);
    const pid_t without = start(similar);
    // Before its exec the child has this process's environment, where the mark is not.
    int killed = 0;
    for (int i = 0; i < 1000 && killed == 0; ++i) killed += kill_marked(mark);
    EXPECT_GE(killed, 1);
    int status = 0;
    ASSERT_EQ(::waitpid(with, &status, 0), with);
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    EXPECT_EQ(::waitpid(without, &status, WNOHANG), 0) << "it had another mark";
    ::kill(without, SIGKILL);
    ::waitpid(without, &status, 0);
    EXPECT_EQ(kill_marked(mark), 0);
}

TEST(ProcessTree, AnEndedProcessIsToldFromOneThatLivesWhetherItIsReapedOrNot) {
    const Family alive([] { Family::wait_for_ever(); });
    const Family zombie([] {});
    EXPECT_EQ(zombie.next(), '\0');
    siginfo_t info{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(zombie.pid()), &info, WEXITED | WNOWAIT), 0);
    const pid_t reaped = ::fork();
    if (reaped == 0) ::_exit(0);
    ASSERT_EQ(::waitpid(reaped, nullptr, 0), reaped);

    const std::vector<pid_t> expected{zombie.pid(), reaped};
    EXPECT_EQ(ended_among({alive.pid(), zombie.pid(), reaped}), expected);
}

}  // namespace
}  // namespace sgpu
