// linger_table.h: which processes may outlive the notebook, known to both halves of the guard.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <new>

namespace sgpu {

// A table in memory that the warden and the keeper share: made before the fork, written by the
// keeper, read by whichever half is left. Without memory, nothing lingers.
//
// Threads: one writer; a reader may come at any moment, also when the writer was killed.
class LingerTable {
public:
    using Times = std::map<pid_t, std::chrono::milliseconds>;
    static constexpr std::chrono::milliseconds kLongest{4000};  // a longer time is cut to this

    LingerTable() {
        void* memory = ::mmap(nullptr, sizeof(Slots), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory != MAP_FAILED) slots_ = new (memory) Slots{};
    }
    ~LingerTable() {
        if (slots_) ::munmap(slots_, sizeof(Slots));
    }
    LingerTable(const LingerTable&) = delete;
    LingerTable& operator=(const LingerTable&) = delete;

    // No effect if the table is full.
    void add(pid_t pid, std::chrono::milliseconds time) {
        if (!slots_) return;
        for (Slot& slot : *slots_) {
            if (slot.pid != 0) continue;
            slot.ms = static_cast<int>(std::min(time, kLongest).count());
            slot.pid = pid;  // last: a slot with a pid is whole
            return;
        }
    }
    void remove(pid_t pid) {
        if (!slots_) return;
        for (Slot& slot : *slots_)
            if (slot.pid == pid) slot.pid = 0;
    }
    Times times() const {
        Times times;
        if (!slots_) return times;
        for (const Slot& slot : *slots_)
            if (const pid_t pid = slot.pid; pid != 0)
                times[pid] = std::chrono::milliseconds(slot.ms);
        return times;
    }

private:
    struct Slot {
        std::atomic<pid_t> pid{0};
        std::atomic<int> ms{0};
    };
    using Slots = std::array<Slot, 16>;

    Slots* slots_ = nullptr;
};

}  // namespace sgpu
