// visible.h: which GPUs a process sees, by CUDA_VISIBLE_DEVICES.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/gpu/nvml.h"

namespace sgpu {

// One device as CUDA counts them: the place in the list is the ordinal, cuda:0 first.
struct VisibleGpu {
    int gpu = 0;       // GpuInfo::index
    std::string uuid;  // of the GPU, or of the slice of it
    bool slice = false;
    friend bool operator==(const VisibleGpu&, const VisibleGpu&) = default;
};

// What CUDA makes of the variable (absent: not set), with CUDA_DEVICE_ORDER=PCI_BUS_ID, which ranks
// have: numbers, beginnings of UUIDs, UUIDs of MIG slices. An entry that means nothing, a negative
// one or one of another kind than the first ends the list; a device named twice empties it.
// A process can use one MIG slice at most, and none beside whole GPUs.
std::vector<VisibleGpu> visible_gpus(const std::optional<std::string>& variable,
                                     const std::vector<GpuInfo>& gpus);

}  // namespace sgpu
