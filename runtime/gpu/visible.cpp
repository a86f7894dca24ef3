#include "runtime/gpu/visible.h"

#include <algorithm>
#include <string_view>

namespace sgpu {
namespace {

std::string_view trimmed(std::string_view text) {
    constexpr std::string_view kBlanks = " \t\n";
    const auto begin = text.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::vector<std::string_view> entries(std::string_view text) {
    std::vector<std::string_view> list;
    for (;;) {
        const auto comma = text.find(',');
        list.push_back(trimmed(text.substr(0, comma)));
        if (comma == std::string_view::npos) return list;
        text.remove_prefix(comma + 1);
    }
}

bool starts_with(std::string_view text, std::string_view start) {
    return text.substr(0, start.size()) == start;
}

std::optional<VisibleGpu> first_slice(const GpuInfo& gpu) {
    if (gpu.slices.empty()) return std::nullopt;
    return VisibleGpu{gpu.index, gpu.slices.front().uuid, true};
}

std::optional<VisibleGpu> whole_or_slice(const GpuInfo& gpu) {
    if (gpu.mig) return first_slice(gpu);
    return VisibleGpu{gpu.index, gpu.uuid, false};
}

// CUDA reads a number as far as there are digits.
std::optional<VisibleGpu> by_number(std::string_view entry, const std::vector<GpuInfo>& gpus) {
    std::size_t number = 0;
    std::size_t digits = 0;
    for (; digits < entry.size() && entry[digits] >= '0' && entry[digits] <= '9'; ++digits)
        number = std::min<std::size_t>(number * 10 + static_cast<std::size_t>(entry[digits] - '0'),
                                       gpus.size());
    if (digits == 0 || number >= gpus.size()) return std::nullopt;
    return whole_or_slice(gpus[number]);
}

// The one device whose UUID begins so.
std::optional<VisibleGpu> by_uuid(std::string_view entry, const std::vector<GpuInfo>& gpus) {
    std::vector<VisibleGpu> found;
    for (const GpuInfo& gpu : gpus) {
        if (!gpu.uuid.empty() && starts_with(gpu.uuid, entry))
            if (const auto one = whole_or_slice(gpu)) found.push_back(*one);
        for (const MigSlice& slice : gpu.slices)
            if (starts_with(slice.uuid, entry)) found.push_back({gpu.index, slice.uuid, true});
    }
    if (found.size() != 1) return std::nullopt;
    return found.front();
}

std::vector<VisibleGpu> all(const std::vector<GpuInfo>& gpus) {
    std::vector<VisibleGpu> whole;
    for (const GpuInfo& gpu : gpus)
        if (!gpu.mig) whole.push_back({gpu.index, gpu.uuid, false});
    if (!whole.empty()) return whole;
    for (const GpuInfo& gpu : gpus)
        if (const auto slice = first_slice(gpu)) return {*slice};
    return {};
}

}  // namespace

std::vector<VisibleGpu> visible_gpus(const std::optional<std::string>& variable,
                                     const std::vector<GpuInfo>& gpus) {
    if (!variable) return all(gpus);
    const auto list = entries(*variable);
    const bool uuids = starts_with(list.front(), "GPU-") || starts_with(list.front(), "MIG-");
    const std::string_view kind = uuids ? list.front().substr(0, 4) : "";
    std::vector<VisibleGpu> found;
    for (const std::string_view entry : list) {
        if (!starts_with(entry, kind)) break;
        const auto one = uuids ? by_uuid(entry, gpus) : by_number(entry, gpus);
        if (!one) break;
        if (std::find(found.begin(), found.end(), *one) != found.end()) return {};
        if (one->slice && !found.empty()) break;
        found.push_back(*one);
        if (one->slice) break;
    }
    return found;
}

}  // namespace sgpu
