#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "runtime/gpu/lock.h"

namespace sgpu {
namespace {

using Uuids = std::vector<std::string>;

struct GpuLock : testing::Test {
    GpuLock() {
        std::string pattern = testing::TempDir() + "sgpu-locks-XXXXXX";
        folder = std::string(::mkdtemp(pattern.data())) + "/locks";
    }
    ~GpuLock() override {
        std::filesystem::remove_all(std::filesystem::path(folder).parent_path());
    }
    GpuLock(const GpuLock&) = delete;
    GpuLock& operator=(const GpuLock&) = delete;

    std::string folder;
};

// Another process that runs `work`, says so, and stays until it is killed or this object ends.
class Other {
public:
    explicit Other(const std::function<bool()>& work) {
        int said[2];
        EXPECT_EQ(::pipe(said), 0);
        pid_ = ::fork();
        if (pid_ == 0) {
            const char result = work() ? 'y' : 'n';
            (void)!::write(said[1], &result, 1);
            for (;;) ::pause();
        }
        char result = 0;
        EXPECT_EQ(::read(said[0], &result, 1), 1);
        EXPECT_EQ(result, 'y');
        ::close(said[0]);
        ::close(said[1]);
    }
    ~Other() { kill(); }
    Other(const Other&) = delete;
    Other& operator=(const Other&) = delete;
    void kill() {
        if (pid_ <= 0) return;
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
        pid_ = 0;
    }
    pid_t pid() const { return pid_; }

private:
    pid_t pid_ = 0;
};

std::size_t held(GpuLocks& locks, const Uuids& uuids) {
    const auto result = locks.try_take(uuids, "mine.ipynb");
    EXPECT_TRUE(result.ok()) << result.error().message;
    return result.value().size();
}

TEST_F(GpuLock, AnotherProcessIsToldWhoHasIt) {
    GpuLocks locks(folder);
    const Other other([&] { return locks.try_take({"GPU-a", "GPU-b"}, "théirs.ipynb").ok(); });
    const auto result = locks.try_take({"GPU-b", "GPU-c"}, "mine.ipynb");
    ASSERT_TRUE(result.ok());
    ASSERT_EQ(result.value().size(), 1U);
    EXPECT_EQ(result.value()[0].uuid, "GPU-b");
    EXPECT_EQ(result.value()[0].pid, other.pid());
    EXPECT_EQ(result.value()[0].notebook, "théirs.ipynb");
}

TEST_F(GpuLock, AllOrNoneAreTaken) {
    GpuLocks locks(folder);
    Other other([&] { return held(locks, {"GPU-b"}) == 0; });
    EXPECT_EQ(held(locks, {"GPU-a", "GPU-b"}), 1U);
    const Other third([&] { return held(locks, {"GPU-a"}) == 0; });
    other.kill();
    EXPECT_EQ(held(locks, {"GPU-b"}), 0U);
}

TEST_F(GpuLock, AHolderThatIsKilledHasItNoLonger) {
    GpuLocks locks(folder);
    Other other([&] { return held(locks, {"GPU-a"}) == 0; });
    EXPECT_EQ(held(locks, {"GPU-a"}), 1U);
    other.kill();
    EXPECT_EQ(held(locks, {"GPU-a"}), 0U);
}

TEST_F(GpuLock, TakenTwiceItIsGivenBackTwice) {
    GpuLocks locks(folder);
    EXPECT_EQ(held(locks, {"GPU-a"}), 0U);
    EXPECT_EQ(held(locks, {"GPU-a", "GPU-b"}), 0U);
    locks.give_back({"GPU-a"});
    GpuLocks others(folder);  // flock belongs to the open file, so this is as good as a process
    EXPECT_EQ(held(others, {"GPU-a"}), 1U);
    locks.give_back({"GPU-a", "GPU-b", "GPU-never"});
    EXPECT_EQ(held(others, {"GPU-a", "GPU-b"}), 0U);
}

TEST_F(GpuLock, AForkedChildThatForgetsDoesNotHoldItBeyondTheEnd) {
    auto locks = std::make_unique<GpuLocks>(folder);
    EXPECT_EQ(held(*locks, {"GPU-a"}), 0U);
    const Other child([&] {
        locks->forget();
        return true;
    });
    GpuLocks others(folder);
    EXPECT_EQ(held(others, {"GPU-a"}), 1U) << "the parent still has it";
    locks.reset();
    EXPECT_EQ(held(others, {"GPU-a"}), 0U);
}

TEST_F(GpuLock, ARemovedFileIsNoLock) {
    GpuLocks locks(folder);
    EXPECT_EQ(held(locks, {"GPU-a"}), 0U);
    locks.give_back({"GPU-a"});
    std::filesystem::remove(folder + "/GPU-a.lock");
    EXPECT_EQ(held(locks, {"GPU-a"}), 0U);
    GpuLocks others(folder);
    EXPECT_EQ(held(others, {"GPU-a"}), 1U);
}

TEST_F(GpuLock, FolderAndFilesAreForEveryUser) {
    const mode_t before = ::umask(077);
    GpuLocks locks(folder);
    EXPECT_EQ(held(locks, {"GPU-a"}), 0U);
    ::umask(before);
    struct stat status {};
    ASSERT_EQ(::stat(folder.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, 01777U);
    ASSERT_EQ(::stat((folder + "/GPU-a.lock").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, 0666U);
}

TEST_F(GpuLock, WhatIsWrittenByOthersNeverHurts) {
    GpuLocks locks(folder);
    const Other other([&] { return held(locks, {"GPU-a"}) == 0; });
    for (const char* text : {"", "{", "[1]", "{\"pid\": \"x\"}", "{\"pid\": 1e99}",
                             "{\"pid\": 999999999, \"notebook\": \"old\"}"}) {
        std::ofstream(folder + "/GPU-a.lock") << text;
        const auto result = locks.try_take({"GPU-a"}, "mine.ipynb");
        ASSERT_TRUE(result.ok());
        ASSERT_EQ(result.value().size(), 1U) << text;
        EXPECT_EQ(result.value()[0].pid, 0) << text;
    }
}

TEST_F(GpuLock, AFolderThatCannotBeUsedIsAnError) {
    std::ofstream(folder) << "a file";
    GpuLocks locks(folder);
    const auto result = locks.try_take({"GPU-a"}, "mine.ipynb");
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.error().message.find(folder), std::string::npos);
}

TEST_F(GpuLock, NothingIsOpenAfterwards) {
    const auto count = [] {
        const std::filesystem::directory_iterator begin("/proc/self/fd");
        return std::distance(begin, std::filesystem::directory_iterator());
    };
    const auto before = count();
    {
        GpuLocks locks(folder);
        EXPECT_EQ(held(locks, {"GPU-a", "GPU-b"}), 0U);
    }
    EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace sgpu
