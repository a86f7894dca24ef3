// gpu_type.h: what a GPU is called in a notebook.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sgpu {

// The short name of a type: "H100" for "NVIDIA H100 80GB HBM3" and for "GPU_8xH100", "RTX 4090" for
// "NVIDIA GeForce RTX 4090", in any case of letters. A product that is not in the table keeps its
// own name, without the maker's.
std::string gpu_type_of(std::string_view name);

// The names that are known by heart, newest first.
std::span<const std::string_view> known_gpu_types();

}  // namespace sgpu
