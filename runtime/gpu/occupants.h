// occupants.h: who has memory on a GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/gpu/nvml.h"

namespace sgpu {

// A process with a CUDA context, as far as the system tells.
struct Occupant {
    pid_t pid = 0;
    std::optional<std::uint64_t> bytes;
    std::string user;  // "" if there is no such process here: it is outside of this container,
    std::string name;  // or has just ended
};

// The processes of a reading, those with most memory first. Reads /proc.
std::vector<Occupant> occupants(const GpuReading& reading);

}  // namespace sgpu
