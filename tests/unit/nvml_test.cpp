#include "runtime/gpu/nvml.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

namespace sgpu {
namespace {

using State = FoundDriver::State;

FoundDriver on(const char* machine) {
    ::setenv("SGPU_FAKE_NVML", machine, 1);
    ::unsetenv("SGPU_FAKE_NVML_USE");
    return find_driver(SGPU_FAKE_NVML_LIBRARY, "/nonexistent");
}

// A root folder that looks as if a driver were there.
std::string root_with_device_file() {
    std::string root = testing::TempDir() + "sgpu-root-" + std::to_string(::getpid());
    std::filesystem::create_directories(root + "/dev/nvidiactl");
    return root;
}

TEST(Nvml, TellsNameUuidMemoryAndLinksOfEachGpu) {
    const FoundDriver driver = on("8xH100");
    ASSERT_EQ(driver.state, State::ready);
    EXPECT_EQ(driver.nvml->driver_version(), "580.65.06");
    EXPECT_EQ(driver.nvml->cuda_version(), 13'000);
    const auto gpus = driver.nvml->gpus();
    ASSERT_EQ(gpus.size(), 8U);
    EXPECT_EQ(gpus[7].name, "NVIDIA H100 80GB HBM3");
    EXPECT_EQ(gpus[7].uuid, "GPU-00170000-0000-4000-8000-000000000000");
    EXPECT_EQ(gpus[7].pci, "00000000:22:00.0");
    EXPECT_EQ(gpus[7].memory_bytes, 81'559ULL << 20);
    EXPECT_EQ(gpus[7].nvlinks, 18);
    EXPECT_EQ(gpus[7].nvlink_version, 4);
    EXPECT_EQ(driver.nvml->ancestor(0, 3), Ancestor::numa_node);
    EXPECT_EQ(driver.nvml->ancestor(0, 4), Ancestor::system);
}

TEST(Nvml, ReadsUseTemperatureAndPower) {
    const FoundDriver driver = on("1xA10");
    ASSERT_EQ(driver.state, State::ready);
    ::setenv("SGPU_FAKE_NVML_USE", "0:17:1000,0:18:24", 1);
    const GpuReading reading = driver.nvml->read(0);
    EXPECT_EQ(reading.problem, "");
    EXPECT_EQ(reading.used_bytes, 1028ULL << 20);
    EXPECT_EQ(reading.celsius, 41U);
    EXPECT_EQ(reading.watts, 120.5);
    EXPECT_FALSE(reading.ecc_errors) << "this GPU has no ECC";
    ASSERT_EQ(reading.processes.size(), 2U);
    EXPECT_EQ(reading.processes[1].pid, 18);
    EXPECT_EQ(reading.processes[1].bytes, 24ULL << 20);
}

TEST(Nvml, ManyProcessesOnOneGpuAreAllListed) {
    const FoundDriver driver = on("1xA10");
    std::string uses;
    for (int pid = 1; pid <= 100; ++pid) uses += "0:" + std::to_string(pid) + ":1,";
    ::setenv("SGPU_FAKE_NVML_USE", uses.c_str(), 1);
    EXPECT_EQ(driver.nvml->read(0).processes.size(), 100U);
}

TEST(Nvml, AGpuThatIsLostIsNamedAndTheOthersStay) {
    const FoundDriver driver = on("lost");
    const auto gpus = driver.nvml->gpus();
    ASSERT_EQ(gpus.size(), 4U);
    EXPECT_EQ(gpus[2].problem, "GPU is lost");
    EXPECT_EQ(driver.nvml->read(2).problem, "GPU is lost");
    EXPECT_EQ(gpus[3].problem, "");
    EXPECT_EQ(gpus[3].index, 3);
}

TEST(Nvml, SlicesOfAGpuInMigModeAreListed) {
    const auto gpus = on("mig").nvml->gpus();
    EXPECT_TRUE(gpus[0].mig);
    ASSERT_EQ(gpus[0].slices.size(), 2U);
    EXPECT_EQ(gpus[0].slices[1].uuid, "MIG-02100000-0000-4000-8000-000000000000");
    EXPECT_FALSE(gpus[1].mig);
}

TEST(Nvml, ADriverThatDoesNotFitItsLibraryIsBroken) {
    const FoundDriver driver = on("broken");
    EXPECT_EQ(driver.state, State::broken);
    EXPECT_THAT(driver.problem, testing::HasSubstr("Driver/library version mismatch"));
    EXPECT_THAT(driver.problem, testing::HasSubstr("restart the machine"));
}

TEST(Nvml, ALibraryWithoutADriverIsAMachineWithoutGpus) {
    EXPECT_EQ(on("unloaded").state, State::absent);
}

TEST(Nvml, NoLibraryAndNoDeviceFileIsAMachineWithoutGpus) {
    const FoundDriver driver = find_driver("libno-such-thing.so.1", "/nonexistent");
    EXPECT_EQ(driver.state, State::absent);
    EXPECT_EQ(driver.problem, "");
}

TEST(Nvml, ADeviceFileWithoutAWorkingDriverIsBroken) {
    const std::string root = root_with_device_file();
    const FoundDriver missing = find_driver("libno-such-thing.so.1", root);
    EXPECT_EQ(missing.state, State::broken);
    EXPECT_THAT(missing.problem, testing::HasSubstr("libno-such-thing.so.1"));
    ::setenv("SGPU_FAKE_NVML", "unloaded", 1);
    EXPECT_EQ(find_driver(SGPU_FAKE_NVML_LIBRARY, root).state, State::broken);
}

TEST(Nvml, ALibraryThatIsAnotherIsNoDriver) {
    EXPECT_EQ(find_driver("libc.so.6", "/nonexistent").state, State::absent);
}

TEST(Nvml, TellsOfErrorsOnceInTheirOrder) {
    const FoundDriver driver = on("2xH100");
    const auto events = driver.nvml->events();
    EXPECT_TRUE(events->take().empty());
    ::setenv("SGPU_FAKE_NVML_XIDS", "1:79,0:31,1:79", 1);
    const std::vector<GpuEvent> expected = {{1, 79}, {0, 31}, {1, 79}};
    EXPECT_EQ(events->take(), expected);
    EXPECT_TRUE(events->take().empty());
}

TEST(Nvml, GpusThatDoNotTellOfErrorsArePassedOver) {
    const FoundDriver driver = on("1xA10");
    const auto events = driver.nvml->events();
    ::setenv("SGPU_FAKE_NVML_XIDS", "0:79", 1);
    EXPECT_TRUE(events->take().empty());
    ::unsetenv("SGPU_FAKE_NVML_XIDS");
}

}  // namespace
}  // namespace sgpu
