#include "runtime/rank_register.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <functional>

namespace sgpu {
namespace {

constexpr pid_t kSome = 4711;

// The exit code of a child that does `work`.
int in_child(const std::function<int()>& work) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(work());
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status)) << "wait status " << status;
    return WEXITSTATUS(status);
}

RankRegister made() {
    auto one = RankRegister::make();
    EXPECT_TRUE(one) << one.error().message;
    return std::move(one.value());
}

RankRegister opened_again(const RankRegister& one) {
    auto same = RankRegister::open(::fcntl(one.fd(), F_DUPFD_CLOEXEC, 0));
    EXPECT_TRUE(same) << same.error().message;
    return std::move(same.value());
}

TEST(RankRegister, KnowsEachPidThatIsInAndNoNeighbour) {
    RankRegister ranks = made();
    for (const pid_t pid : {1, 63, 64, kSome, RankRegister::kEnd - 1}) {
        EXPECT_FALSE(ranks.contains(pid));
        EXPECT_FALSE(ranks.remove(pid)) << "it was never in";
        EXPECT_TRUE(ranks.add(pid));
        EXPECT_TRUE(ranks.contains(pid));
        EXPECT_FALSE(ranks.contains(pid - 1));
        EXPECT_FALSE(ranks.contains(pid + 1));
        EXPECT_TRUE(ranks.remove(pid));
        EXPECT_FALSE(ranks.contains(pid));
    }
}

TEST(RankRegister, TakesNoNumberThatIsNoPid) {
    RankRegister ranks = made();
    for (const pid_t pid : {0, -1, RankRegister::kEnd}) {
        EXPECT_FALSE(ranks.add(pid));
        EXPECT_FALSE(ranks.contains(pid));
        EXPECT_FALSE(ranks.remove(pid));
    }
}

TEST(RankRegister, AnEmptyOneTakesNobody) {
    RankRegister ranks;
    EXPECT_FALSE(ranks.add(kSome));
    EXPECT_FALSE(ranks.contains(kSome));
    EXPECT_FALSE(ranks.remove(kSome));
    EXPECT_EQ(ranks.fd(), -1);
}

TEST(RankRegister, WhatOneProcessAddsTheOtherKnows) {
    RankRegister ranks = made();
    EXPECT_EQ(in_child([&] { return opened_again(ranks).add(kSome) ? 0 : 1; }), 0);
    EXPECT_TRUE(ranks.contains(kSome)) << "it outlives the process that noted it";
    EXPECT_EQ(in_child([&] { return opened_again(ranks).remove(kSome) ? 0 : 1; }), 0);
    EXPECT_FALSE(ranks.contains(kSome));
}

TEST(RankRegister, NeighboursThatAreAddedAtOnceAreAllIn) {
    constexpr int kProcesses = 4;
    constexpr pid_t kEach = 200'000;
    RankRegister ranks = made();
    std::array<int, 2> gate{};
    ASSERT_EQ(::pipe2(gate.data(), O_CLOEXEC), 0);
    std::array<pid_t, kProcesses> adders{};
    for (int i = 0; i < kProcesses; ++i) {
        pid_t& adder = adders[static_cast<std::size_t>(i)];
        adder = ::fork();
        if (adder != 0) continue;
        char byte = 0;
        ::close(gate[1]);
        (void)!::read(gate[0], &byte, 1);  // until all are there
        for (pid_t n = 0; n < kEach; ++n) ranks.add(kSome + n * kProcesses + i);
        ::_exit(0);
    }
    for (const int fd : gate) ::close(fd);
    for (const pid_t pid : adders) ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
    for (pid_t n = 0; n < kEach * kProcesses; ++n) ASSERT_TRUE(ranks.contains(kSome + n)) << n;
}

TEST(RankRegister, WhatIsNoRegisterIsRefusedAndLeftOpen) {
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    const UniqueFd read_end(pipe[0]);
    const UniqueFd write_end(pipe[1]);
    const UniqueFd unsealed(::memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(unsealed.get(), RankRegister::kEnd / 8), 0);
    const UniqueFd small(::memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    for (const int fd : {read_end.get(), unsealed.get(), small.get()}) {
        EXPECT_FALSE(RankRegister::open(fd));
        EXPECT_GE(::fcntl(fd, F_GETFD), 0) << "it was another's";
    }
    EXPECT_FALSE(RankRegister::open(-1));
}

TEST(RankRegister, NobodyCanChangeItsSize) {
    const RankRegister ranks = made();
    EXPECT_EQ(::ftruncate(ranks.fd(), 0), -1);
    EXPECT_EQ(errno, EPERM);
}

TEST(LeadSession, MakesALeaderThatIsKnown) {
    RankRegister ranks = made();
    pid_t leader = 0;
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
    EXPECT_EQ(in_child([&] {
                  const pid_t self = ::getpid();
                  lead_session(opened_again(ranks));
                  (void)!::write(pipe[1], &self, sizeof self);
                  return ::getsid(0) == self && ::getpgrp() == self ? 0 : 1;
              }),
              0);
    ASSERT_EQ(::read(pipe[0], &leader, sizeof leader), static_cast<ssize_t>(sizeof leader));
    EXPECT_TRUE(ranks.contains(leader));
    for (const int fd : pipe) ::close(fd);
}

TEST(LeadSession, WithoutARegisterItLeadsAGroupOnly) {
    const pid_t session = ::getsid(0);
    EXPECT_EQ(in_child([&] {
                  lead_session(RankRegister());
                  return ::getsid(0) == session && ::getpgrp() == ::getpid() ? 0 : 1;
              }),
              0);
}

// The system makes no session for a process that leads a group.
TEST(LeadSession, WhoCannotHaveASessionIsNotLeftInTheRegister) {
    const RankRegister ranks = made();
    const pid_t session = ::getsid(0);
    EXPECT_EQ(in_child([&] {
                  ::setpgid(0, 0);
                  lead_session(opened_again(ranks));
                  return ::getsid(0) == session && !ranks.contains(::getpid()) ? 0 : 1;
              }),
              0);
}

}  // namespace
}  // namespace sgpu
