#include "runtime/gpu/warm_plan.h"

#include <algorithm>
#include <set>

namespace sgpu {

std::vector<std::pair<ChildId, int>> WarmPlan::assign(const std::deque<ChildId>& spares) {
    if (!active()) return {};
    std::map<ChildId, int> kept;  // without those that are no spares any more
    std::set<int> covered;
    for (const ChildId spare : spares) {
        const auto found = device_of_.find(spare);
        if (found == device_of_.end()) continue;
        kept.insert(*found);
        covered.insert(found->second);
    }
    device_of_ = std::move(kept);
    std::vector<std::pair<ChildId, int>> orders;
    int device = 0;
    for (const ChildId spare : spares) {
        if (device_of_.count(spare) != 0) continue;
        while (covered.count(device) != 0) ++device;
        if (device >= devices_) break;
        orders.emplace_back(spare, device);
        device_of_[spare] = device++;
    }
    return orders;
}

ChildId WarmPlan::take(std::deque<ChildId>& spares, int rank) {
    const auto where = [&](auto fits) { return std::find_if(spares.begin(), spares.end(), fits); };
    auto best = spares.begin();
    if (!device_of_.empty()) {
        best = where([&](ChildId spare) {
            const auto found = device_of_.find(spare);
            return found != device_of_.end() && found->second == rank;
        });
        // One that is warm elsewhere would hold memory there, for nothing.
        if (best == spares.end()) best = where([&](ChildId spare) { return !is_warm(spare); });
        if (best == spares.end()) best = spares.begin();
    }
    const ChildId taken = *best;
    spares.erase(best);
    device_of_.erase(taken);
    return taken;
}

}  // namespace sgpu
