// Counters of cgroups in folders that look like those of the system.
#include "runtime/memory_watch.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace sgpu {
namespace {

class FakeSystem : public ::testing::Test {
protected:
    FakeSystem() {
        std::string path = ::testing::TempDir() + "memory-watch-XXXXXX";
        root_ = ::mkdtemp(path.data());
    }
    void TearDown() override { std::filesystem::remove_all(root_); }

    void write(const std::string& name, const std::string& text) const {
        const std::filesystem::path path = root_ + "/" + name;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path) << text;
    }
    MemoryWatch watch() const { return MemoryWatch(root_ + "/proc", root_ + "/cgroup"); }

    std::string root_;
};

TEST_F(FakeSystem, CountsTheKillsOfACgroupOfVersionTwo) {
    write("proc/self/cgroup", "0::/user/job\n");
    write("cgroup/user/job/memory.events", "low 0\noom 5\noom_kill 2\noom_group_kill 9\n");
    const MemoryWatch watch = this->watch();
    EXPECT_EQ(watch.count(), 2U);
    write("cgroup/user/job/memory.events", "oom 6\noom_kill 3\n");
    EXPECT_EQ(watch.verdict(2, watch.count()), OutOfMemory::yes);
    EXPECT_EQ(watch.verdict(3, watch.count()), OutOfMemory::no);
}

TEST_F(FakeSystem, CountsTheKillsOfACgroupOfVersionOneBesideAnEmptyTreeOfVersionTwo) {
    write("proc/self/cgroup", "4:cpu,memory:/box\n1:cpuset:/\n0::/\n");
    write("cgroup/memory/box/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
    EXPECT_EQ(watch().count(), 7U);
}

TEST_F(FakeSystem, AContainerFindsItsCgroupAtTheTop) {
    write("proc/self/cgroup", "4:memory:/docker/0123\n");
    write("cgroup/memory/memory.oom_control", "oom_kill 1\n");
    EXPECT_EQ(watch().count(), 1U);
}

TEST_F(FakeSystem, WithoutACgroupTheMachinesKillsAreAHintOnly) {
    write("proc/self/cgroup", "0::/\n");
    write("proc/vmstat", "nr_free_pages 3\noom_kill 4\n");
    const MemoryWatch watch = this->watch();
    EXPECT_EQ(watch.count(), 4U);
    EXPECT_EQ(watch.verdict(3, watch.count()), OutOfMemory::likely);
    EXPECT_EQ(watch.verdict(4, watch.count()), OutOfMemory::no);
    EXPECT_EQ(watch.limit(), 0U);
}

TEST_F(FakeSystem, ASystemThatDoesNotCountSaysNothing) {
    const MemoryWatch watch = this->watch();
    EXPECT_EQ(watch.count(), std::nullopt);
    EXPECT_EQ(watch.verdict(std::nullopt, std::nullopt), OutOfMemory::unknown);
    EXPECT_EQ(watch.limit(), 0U);
}

TEST_F(FakeSystem, ACounterThatGoesAwayIsUnknown) {
    write("proc/self/cgroup", "0::/job\n");
    write("cgroup/job/memory.events", "oom_kill 2\n");
    const MemoryWatch watch = this->watch();
    std::filesystem::remove_all(root_ + "/cgroup");
    EXPECT_EQ(watch.verdict(2, watch.count()), OutOfMemory::unknown);
}

TEST_F(FakeSystem, TheLimitIsTheLeastOfAllLevels) {
    write("proc/self/cgroup", "0::/user/job/step\n");
    write("cgroup/user/job/step/memory.events", "oom_kill 0\n");
    write("cgroup/user/job/step/memory.max", "max\n");
    write("cgroup/user/job/memory.max", "2147483648\n");
    write("cgroup/user/memory.max", "4294967296\n");
    EXPECT_EQ(watch().limit(), 2147483648U);
}

TEST_F(FakeSystem, VersionOneNamesTheLeastLimitItself) {
    write("proc/self/cgroup", "4:memory:/box\n");
    write("cgroup/memory/box/memory.oom_control", "oom_kill 0\n");
    write("cgroup/memory/box/memory.stat", "cache 1\nhierarchical_memory_limit 314572800\n");
    EXPECT_EQ(watch().limit(), 314572800U);
    write("cgroup/memory/box/memory.stat", "hierarchical_memory_limit 9223372036854771712\n");
    EXPECT_EQ(watch().limit(), 0U);
}

TEST_F(FakeSystem, WhatIsHeldIsCountedWhereTheLimitIs) {
    write("proc/self/cgroup", "0::/user/job\n");
    write("cgroup/user/job/memory.events", "oom_kill 0\n");
    write("cgroup/user/job/memory.max", "max\n");
    write("cgroup/user/job/memory.current", "1000\n");
    write("cgroup/user/memory.max", "4000\n");
    EXPECT_EQ(watch().held(), 0U) << "that level does not say";
    write("cgroup/user/memory.current", "3000\n");
    EXPECT_EQ(watch().held(), 3000U);
}

TEST_F(FakeSystem, WhatIsHeldInVersionOne) {
    write("proc/self/cgroup", "4:memory:/box\n");
    write("cgroup/memory/box/memory.oom_control", "oom_kill 0\n");
    write("cgroup/memory/box/memory.stat", "hierarchical_memory_limit 314572800\n");
    write("cgroup/memory/box/memory.limit_in_bytes", "314572800\n");
    write("cgroup/memory/box/memory.usage_in_bytes", "1048576\n");
    EXPECT_EQ(watch().held(), 1048576U);
}

constexpr std::uint64_t kMegabyte = 1'000'000;

TEST_F(FakeSystem, RoomIsWhatTheTightestLevelHasLeftWithWhatItCanReclaim) {
    write("proc/meminfo", "MemFree: 5 kB\nMemAvailable: 9000000 kB\nSwapFree: 0 kB\n");
    write("proc/self/cgroup", "0::/user/job\n");
    write("cgroup/user/job/memory.events", "oom_kill 0\n");
    write("cgroup/user/job/memory.max", "max\n");
    write("cgroup/user/job/memory.current", "100000000\n");
    write("cgroup/user/memory.max", "1000000000\n");
    write("cgroup/user/memory.current", "900000000\n");
    write("cgroup/user/memory.stat", "anon 1\ninactive_file 100000000\nactive_file 50000000\n");
    EXPECT_EQ(watch().room(), 250 * kMegabyte);
    EXPECT_FALSE(lack_of_memory(250 * kMegabyte, watch()));
    EXPECT_TRUE(lack_of_memory(250 * kMegabyte + 1, watch()));
    const auto lack = lack_of_memory(500 * kMegabyte, watch());
    ASSERT_TRUE(lack);
    EXPECT_EQ(lack->os_errno, ENOMEM);
    EXPECT_EQ(lack->message,
              "0.5 GiB of shared memory are needed and 0.2 GiB of the cgroup's 0.9 GiB are left: "
              "send less, or pass it through a file");
}

TEST_F(FakeSystem, RoomInACgroupOfVersionOne) {
    write("proc/meminfo", "MemAvailable: 9000000 kB\n");
    write("proc/self/cgroup", "4:memory:/box\n");
    write("cgroup/memory/box/memory.oom_control", "oom_kill 0\n");
    write("cgroup/memory/box/memory.limit_in_bytes", "500000000\n");
    write("cgroup/memory/box/memory.usage_in_bytes", "510000000\n");
    write("cgroup/memory/box/memory.stat", "active_file 7\ntotal_active_file 20000000\n");
    EXPECT_EQ(watch().room(), 10 * kMegabyte);
}

TEST_F(FakeSystem, WithoutACgroupTheMachinesMemoryIsTheRoomAndSwapCounts) {
    write("proc/meminfo", "MemAvailable: 1000 kB\nSwapFree: 24 kB\n");
    EXPECT_EQ(watch().room(), 1024U * 1024U);
}

TEST_F(FakeSystem, NothingIsRefusedWhereTheSystemDoesNotSay) {
    EXPECT_FALSE(lack_of_memory(1ULL << 50, watch()));
    write("proc/meminfo", "MemAvailable: 1000 kB\n");
    EXPECT_FALSE(lack_of_memory(kMegabyte * 60, watch())) << "small amounts are not looked at";
}

}  // namespace
}  // namespace sgpu
