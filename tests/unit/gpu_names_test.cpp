#include <gtest/gtest.h>

#include "runtime/gpu/gpu_type.h"
#include "runtime/gpu/visible.h"

namespace sgpu {
namespace {

TEST(GpuType, IsTheShortNameOfTheProduct) {
    const std::pair<const char*, const char*> names[] = {
        {"NVIDIA H100 80GB HBM3", "H100"},
        {"NVIDIA H200", "H200"},
        {"NVIDIA B200", "B200"},
        {"NVIDIA A100-SXM4-40GB", "A100"},
        {"NVIDIA A10", "A10"},
        {"NVIDIA A10G", "A10G"},
        {"NVIDIA L4", "L4"},
        {"NVIDIA L40S", "L40S"},
        {"Tesla T4", "T4"},
        {"Tesla V100-SXM2-16GB", "V100"},
        {"NVIDIA GH200 480GB", "GH200"},
        {"NVIDIA GeForce RTX 4090", "RTX 4090"},
        {"NVIDIA GeForce RTX 3080 Ti Laptop GPU", "RTX 3080 Ti"},
        {"NVIDIA RTX A6000", "RTX A6000"},
        {"NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"},
        {"NVIDIA GeForce GTX 1080", "GTX 1080"},
        {"NVIDIA X9000 Future", "X9000 Future"},
        {"GPU_8xH100", "H100"},
        {"h100", "H100"},
        {"GPU", "GPU"},
        {"", ""},
    };
    for (const auto& [name, type] : names) EXPECT_EQ(gpu_type_of(name), type) << name;
}

std::vector<GpuInfo> gpus(int count) {
    std::vector<GpuInfo> list(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
        list[static_cast<std::size_t>(i)].index = i;
        list[static_cast<std::size_t>(i)].uuid = "GPU-" + std::to_string(i) + "abc";
    }
    return list;
}

// The numbers of the GPUs that are seen, in CUDA's order.
std::string seen(const char* variable, const std::vector<GpuInfo>& machine) {
    const auto given = variable ? std::optional<std::string>(variable) : std::nullopt;
    std::string text;
    for (const VisibleGpu& one : visible_gpus(given, machine)) text += std::to_string(one.gpu);
    return text;
}

TEST(Visible, ReadsTheVariableAsCudaDoes) {
    const auto machine = gpus(4);
    const std::pair<const char*, const char*> cases[] = {
        {nullptr, "0123"}, {"0,1", "01"},
        {"3,1", "31"},     {" 2 , 0 ", "20"},
        {"", ""},          {"-1", ""},
        {"0,-1,1", "0"},   {"NoDevFiles", ""},
        {"1,9,2", "1"},    {"9", ""},
        {"1,1", ""},       {"1gpu,2", "12"},
        {"1,,2", "1"},     {"99999999999999999999", ""},
        {"GPU-2", "2"},    {"GPU-3abc,GPU-0", "30"},
        {"GPU-9", ""},     {"GPU-", ""},
        {"GPU-1,2", "1"},  {"GPU-1,GPU-1abc", ""},
        {"1,GPU-2", "1"},  {"MIG-1", ""},
    };
    for (const auto& [variable, expected] : cases)
        EXPECT_EQ(seen(variable, machine), expected) << (variable ? variable : "(not set)");
}

TEST(Visible, OneSliceOfAGpuInMigModeAtMost) {
    auto machine = gpus(2);
    machine[0].mig = true;
    machine[0].slices = {{"MIG-aa", 1}, {"MIG-ab", 1}};
    EXPECT_EQ(visible_gpus("MIG-ab", machine), (std::vector<VisibleGpu>{{0, "MIG-ab", true}}));
    EXPECT_EQ(visible_gpus("MIG-ab,MIG-aa", machine).size(), 1U);
    EXPECT_TRUE(visible_gpus("MIG-a", machine).empty()) << "could be either";
    EXPECT_EQ(visible_gpus("0", machine), (std::vector<VisibleGpu>{{0, "MIG-aa", true}}));
    EXPECT_EQ(seen(nullptr, machine), "1") << "whole GPUs go first";
    machine.pop_back();
    EXPECT_EQ(visible_gpus({}, machine), (std::vector<VisibleGpu>{{0, "MIG-aa", true}}));
    machine[0].slices.clear();
    EXPECT_TRUE(visible_gpus({}, machine).empty());
}

}  // namespace
}  // namespace sgpu
