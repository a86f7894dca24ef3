#include "runtime/gpu/events.h"

namespace sgpu {
namespace {

constexpr unsigned long long kXidCriticalError = 8;
constexpr unsigned kWithoutWaiting = 0;  // ms
constexpr int kMostAtOnce = 256;         // a GPU that fails again and again must not keep us

}  // namespace

GpuEvents::GpuEvents(const nvml::Api& api, const std::vector<int>& gpus) : api_(api) {
    if (!api_.event_set_create || !api_.event_set_free || !api_.register_events ||
        !api_.event_set_wait || api_.event_set_create(&set_) != nvml::kSuccess) {
        set_ = nullptr;
        return;
    }
    for (const int gpu : gpus) {
        nvml::Device device = nullptr;
        if (api_.handle(static_cast<unsigned>(gpu), &device) == nvml::kSuccess &&
            api_.register_events(device, kXidCriticalError, set_) == nvml::kSuccess)
            index_of_[device] = gpu;
    }
}

GpuEvents::~GpuEvents() {
    if (set_) api_.event_set_free(set_);
}

std::vector<GpuEvent> GpuEvents::take() {
    std::vector<GpuEvent> found;
    nvml::EventData data{};
    for (int i = 0; !index_of_.empty() && i < kMostAtOnce; ++i) {
        if (api_.event_set_wait(set_, &data, kWithoutWaiting) != nvml::kSuccess) break;
        const auto gpu = index_of_.find(data.device);
        if (gpu != index_of_.end() && data.type == kXidCriticalError)
            found.push_back({gpu->second, static_cast<int>(data.data)});
    }
    return found;
}

}  // namespace sgpu
