// warm_plan.h: which spare makes a context on which GPU.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/ticket.h"

namespace sgpu {

// Pure. A spare does not know which rank it will be; but rank N uses GPU N, so the spares are
// spread over the GPUs, and each rank is given the spare that is warm on its GPU.
class WarmPlan {
public:
    // No contexts are wanted any more, and those that were are forgotten.
    void end() { *this = {}; }
    // One context on each of the first `devices`, with this CUDA_VISIBLE_DEVICES.
    void begin(int devices, std::optional<std::string> visible) {
        devices_ = devices;
        visible_ = std::move(visible);
    }
    bool active() const { return devices_ > 0; }
    const std::optional<std::string>& visible() const { return visible_; }
    bool is_warm(ChildId spare) const { return device_of_.count(spare) != 0; }

    // Which spares are to make a context now, and where. Each is told once.
    std::vector<std::pair<ChildId, int>> assign(const std::deque<ChildId>& spares);

    // Takes the best spare for a rank out of the queue. REQUIRES: there is one.
    ChildId take(std::deque<ChildId>& spares, int rank);

private:
    int devices_ = 0;
    std::optional<std::string> visible_;
    std::map<ChildId, int> device_of_;
};

}  // namespace sgpu
