#include "runtime/doctor.h"

#include <gmock/gmock.h>

namespace sgpu {
namespace {

using Level = Check::Level;
using testing::HasSubstr;

constexpr std::uint64_t kGiga = 1'000'000'000;

GpuFacts h100(int index) {
    GpuFacts gpu;
    gpu.info.index = index;
    gpu.info.name = "NVIDIA H100 80GB HBM3";
    gpu.info.nvlinks = 18;
    gpu.info.nvlink_version = 4;
    gpu.reading.used_bytes = 1 * kGiga;
    gpu.reading.total_bytes = 80 * kGiga;
    return gpu;
}

// Eight GPUs on which all is well.
DoctorFacts healthy() {
    DoctorFacts facts;
    facts.ranks = 8;
    facts.system = {.shm_bytes = 64 * kGiga,
                    .shm_free_bytes = 64 * kGiga,
                    .open_files = 65'536,
                    .locked_bytes = {},
                    .processes = {},
                    .memory_limit_bytes = {},
                    .memory_used_bytes = {},
                    .memory_bytes = 2'000 * kGiga,
                    .cores = 192};
    facts.driver.state = FoundDriver::State::ready;
    facts.driver.version = "580.65.06";
    facts.driver.cuda_version = 13'000;
    facts.driver.farthest = Ancestor::system;
    for (int i = 0; i < 8; ++i) facts.driver.gpus.push_back(h100(i));
    facts.software = {"3.12", "2.11.0", "13.0", {"there", "", ""}, {"lab", "", ""}, {"db", "", ""}};
    facts.all_reduce = {.tried = true,
                        .error = "",
                        .ranks = 8,
                        .backend = "nccl",
                        .nccl = "2.28.9",
                        .bytes = kGiga,
                        .seconds = 0.005};
    return facts;
}

// nccl-tests' bus bandwidth: 2 (n - 1) / n of the bytes, by the time of one.
TEST(Doctor, AnAllReduceIsToldAsWhatCrossesEachLink) {
    DoctorFacts facts = healthy();
    const auto told = [&facts] {
        for (const Check& check : diagnose(facts))
            if (check.name == "all-reduce") return check.text;
        return std::string();
    };
    EXPECT_EQ(told(), "nccl 2.28.9, 8 ranks, 1000 MB in 5.00 ms: 350.0 GB/s over each link of 450");
    facts.all_reduce.ranks = 2;
    EXPECT_EQ(told(), "nccl 2.28.9, 2 ranks, 1000 MB in 5.00 ms: 200.0 GB/s over each link of 450");
}

// The one check of that name that is not ok; fails if there are others.
Check only_trouble(const DoctorFacts& facts) {
    Check found;
    for (const Check& check : diagnose(facts)) {
        if (check.level == Level::ok) continue;
        EXPECT_TRUE(found.name.empty()) << found.name << " and " << check.name;
        EXPECT_FALSE(check.advice.empty()) << check.name << ": " << check.text;
        found = check;
    }
    return found;
}

TEST(Doctor, FindsNothingWhereAllIsWell) {
    EXPECT_EQ(only_trouble(healthy()).name, "");
}

TEST(Doctor, AMachineWithoutAGpuIsWell) {
    DoctorFacts facts = healthy();
    facts.driver = {};
    facts.software.torch_cuda.clear();
    facts.all_reduce.backend = "gloo";
    EXPECT_EQ(only_trouble(facts).name, "");
}

TEST(Doctor, EachTroubleIsOneLineWithWhatToDo) {
    struct Case {
        Level level;
        const char* name;
        const char* says;
        void (*spoil)(DoctorFacts&);
    };
    const Case cases[] = {
        {Level::error, "driver", "mismatch",
         [](DoctorFacts& f) {
             f.driver = {};
             f.driver.state = FoundDriver::State::broken;
             f.driver.problem = "version mismatch";
         }},
        {Level::error, "torch", "without CUDA",
         [](DoctorFacts& f) { f.software.torch_cuda.clear(); }},
        {Level::error, "torch", "CUDA 13.0, the driver runs CUDA up to 12.2",
         [](DoctorFacts& f) { f.driver.cuda_version = 12'020; }},
        {Level::error, "torch", "imported", [](DoctorFacts& f) { f.software.torch.clear(); }},
        {Level::error, "GPU 3", "GPU is lost",
         [](DoctorFacts& f) {
             f.driver.gpus[3] = {};
             f.driver.gpus[3].info.index = 3;
             f.driver.gpus[3].info.problem = "GPU is lost";
             f.driver.gpus[3].info.name = "NVIDIA H100 80GB HBM3";
         }},
        {Level::error, "GPU 0", "no process",
         [](DoctorFacts& f) { f.driver.gpus[0].info.prohibited = true; }},
        {Level::error, "GPU 0", "bad memory",
         [](DoctorFacts& f) { f.driver.gpus[0].reading.rows_failed = true; }},
        {Level::warning, "GPU 0", "next reset",
         [](DoctorFacts& f) { f.driver.gpus[0].reading.rows_pending = true; }},
        {Level::warning, "GPU 7", "2 memory errors",
         [](DoctorFacts& f) { f.driver.gpus[7].reading.ecc_errors = 2; }},
        {Level::warning, "GPU 1", "pid 12 (alice, python) is on it",
         [](DoctorFacts& f) {
             f.driver.gpus[1].others = {{12, kGiga, "alice", "python"}};
         }},
        {Level::warning, "GPU 1", "91 °C",
         [](DoctorFacts& f) { f.driver.gpus[1].reading.celsius = 91; }},
        {Level::warning, "GPU 1", "one process at a time",
         [](DoctorFacts& f) { f.driver.gpus[1].info.exclusive = true; }},
        {Level::warning, "GPU 2", "6 of 18 NVLinks",
         [](DoctorFacts& f) { f.driver.gpus[2].info.nvlinks = 6; }},
        {Level::warning, "GPUs", "several types",
         [](DoctorFacts& f) { f.driver.gpus[2].info.name = "NVIDIA A10"; }},
        {Level::warning, "GPUs", "8 hidden",
         [](DoctorFacts& f) {
             f.driver.gpus.clear();
             f.driver.hidden = 8;
         }},
        {Level::warning, "all-reduce", "GB/s over each link of 450",
         [](DoctorFacts& f) { f.all_reduce.seconds = 0.1; }},
        {Level::error, "all-reduce", "unhandled system error",
         [](DoctorFacts& f) { f.all_reduce.error = "unhandled system error"; }},
        {Level::error, "shared memory", "no /dev/shm",
         [](DoctorFacts& f) { f.system.shm_bytes.reset(); }},
        {Level::warning, "shared memory", "67 MB",
         [](DoctorFacts& f) { f.system.shm_bytes = f.system.shm_free_bytes = 67'108'864; }},
        {Level::error, "shared memory", "1 MB",
         [](DoctorFacts& f) { f.system.shm_free_bytes = 1'048'576; }},
        {Level::error, "limits", "open files 64", [](DoctorFacts& f) { f.system.open_files = 64; }},
        {Level::warning, "limits", "open files 512",
         [](DoctorFacts& f) { f.system.open_files = 512; }},
        {Level::error, "limits", "processes 100", [](DoctorFacts& f) { f.system.processes = 100; }},
        {Level::warning, "memory", "4.2 GB for this container",
         [](DoctorFacts& f) { f.system.memory_limit_bytes = 4'294'967'296; }},
        {Level::error, "kernelspec", "does not find",
         [](DoctorFacts& f) {
             f.software.kernelspec = {"", "does not find", "install"};
         }},
        {Level::warning, "Jupyter", "no front end",
         [](DoctorFacts& f) {
             f.software.jupyter = {"", "no front end", "install"};
         }},
        {Level::error, "MLflow", "cannot be written",
         [](DoctorFacts& f) {
             f.software.mlflow = {"", "cannot be written", "another"};
         }},
    };
    for (const Case& one : cases) {
        DoctorFacts facts = healthy();
        one.spoil(facts);
        const Check found = only_trouble(facts);
        EXPECT_EQ(found.name, one.name) << one.says;
        EXPECT_EQ(found.level, one.level) << one.says;
        EXPECT_THAT(found.text, HasSubstr(one.says));
    }
}

TEST(Doctor, AnOlderMinorVersionOfTheDriversCudaIsNoTrouble) {
    DoctorFacts facts = healthy();
    facts.software.torch_cuda = "13.9";
    EXPECT_EQ(only_trouble(facts).name, "") << "CUDA has minor version compatibility";
}

TEST(Doctor, TheSpeedOfLinksIsThatOfNvlinkElseOfPcie) {
    GpuInfo gpu;
    EXPECT_EQ(link_speed(gpu), 0);
    gpu.pcie_generation = 5;
    gpu.pcie_width = 16;
    EXPECT_NEAR(link_speed(gpu), 63, 0.1);
    gpu.nvlinks = 18;
    gpu.nvlink_version = 4;
    EXPECT_EQ(link_speed(gpu), 450);
    gpu.nvlink_version = 99;
    EXPECT_EQ(link_speed(gpu), 900) << "one that is not known yet is as quick as the last";
}

TEST(Doctor, ReadsThisMachine) {
    const SystemFacts facts = read_system_facts();
    EXPECT_GT(facts.memory_bytes, kGiga / 4);
    EXPECT_GE(facts.cores, 1);
    EXPECT_TRUE(facts.shm_bytes);
}

}  // namespace
}  // namespace sgpu
