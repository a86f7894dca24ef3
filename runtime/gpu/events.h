// events.h: critical errors of GPUs, as the driver tells of them (in its log: "Xid 79").
#pragma once

#include <map>
#include <vector>

#include "runtime/gpu/nvml_api.h"

namespace sgpu {

struct GpuEvent {
    int gpu = 0;  // GpuInfo::index
    int xid = 0;  // the driver's number for the error
    friend bool operator==(const GpuEvent&, const GpuEvent&) = default;
};

// Collects what happens from its construction on; the driver keeps it until it is taken, so no
// thread waits for it. GPUs and drivers that do not tell are passed over.
//
// Threads: one at a time. The Nvml whose `api` it is must live as long.
class GpuEvents {
public:
    // Registers the GPUs of these indices.
    GpuEvents(const nvml::Api& api, const std::vector<int>& gpus);
    ~GpuEvents();
    GpuEvents(const GpuEvents&) = delete;
    GpuEvents& operator=(const GpuEvents&) = delete;

    // Those since the last call, oldest first; does not wait. One for each occurrence.
    std::vector<GpuEvent> take();

private:
    const nvml::Api api_;
    nvml::EventSet set_ = nullptr;  // null: nobody tells
    std::map<nvml::Device, int> index_of_;
};

}  // namespace sgpu
