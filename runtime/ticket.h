// ticket.h: what a caller holds while the pool's thread works on its request.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/call.h"
#include "runtime/event_fd.h"
#include "runtime/memory_watch.h"
#include "runtime/output_mux.h"
#include "runtime/unique_fd.h"
#include "runtime/wire.h"

namespace sgpu {

using ChildId = std::uint32_t;  // names one process of a pool for ever; 0 is none

// How one rank's part of a call ended.
struct RankOutcome {
    int rank = 0;
    ChildId child = 0;
    int pid = 0;
    RankState state = RankState::running;
    bool consequence = false;
    int status = 0;           // wait status, if it died
    bool exit_known = false;  // false: it was given up, or its guard died
    bool came_up = false;     // its agent has said hello
    std::string program;      // that it had become by an exec, if it died as one; its path
    MemoryEnd memory;         // if it died; also if it raised, while memory ran out elsewhere
    double began = 0;         // from the call's begin until user code began; 0 if it did not
    double seconds = 0;       // from the call's begin to its end, or to when it raised
    std::map<std::string, double> startup;  // Done::startup
    std::vector<std::string> frames;
    UniqueFd buffer;
};

// How a process of the pool ended that nobody had sent away.
struct DeadChild {
    int pid = 0;
    int status = 0;           // wait status
    bool exit_known = false;  // false: it was given up, or its guard died
    std::string program;      // that it had become by an exec; its path
    MemoryEnd memory;
};

// One call as it stands: for a status line.
struct CallView {
    std::vector<RankState> states;  // in the order of the call's ranks
    std::vector<LiveLine> live;     // progress lines
    Unshown unshown;                // of a flood
    EndCause cause = EndCause::none;
    Pressure pressure = Pressure::none;
    std::map<int, std::string> stacks;  // by rank, JSON as of whereabouts(), if they were taken
};

// A call under way. Two owners: the caller, who may give up waiting, and the pool's thread, which
// fills it in; hence shared_ptr.
//
// Threads: any. done_fd() becomes readable, and stays so, once all ranks have ended. It is -1 if
// the process was out of descriptors; then there is only done().
class CallTicket {
public:
    explicit CallTicket(CallId id) : id_(id) {}

    CallId id() const { return id_; }
    int done_fd() const { return done_.fd(); }

    bool done() const {
        const std::lock_guard lock(mutex_);
        return finished_;
    }
    CallView view() const {
        const std::lock_guard lock(mutex_);
        return view_;
    }
    // The outcomes, in the order of the call's ranks. Empty before done(), and the second time.
    std::vector<RankOutcome> take_outcomes() {
        const std::lock_guard lock(mutex_);
        return std::exchange(outcomes_, {});
    }

    // For the pool's thread.
    void set_view(CallView view) {
        const std::lock_guard lock(mutex_);
        view_ = std::move(view);
    }
    void finish(std::vector<RankOutcome> outcomes) {
        {
            const std::lock_guard lock(mutex_);
            outcomes_ = std::move(outcomes);
            finished_ = true;
        }
        done_.notify();
    }

private:
    const CallId id_;
    EventFd done_;
    mutable std::mutex mutex_;  // guards what follows
    bool finished_ = false;
    CallView view_;
    std::vector<RankOutcome> outcomes_;
};

// A question to some children: each answers with a text, or with nothing if it ends before.
// Owners and threads as for CallTicket.
class QueryTicket {
public:
    explicit QueryTicket(std::size_t expected) : expected_(expected) {
        if (expected == 0) done_.notify();
    }

    int done_fd() const { return done_.fd(); }
    bool done() const {
        const std::lock_guard lock(mutex_);
        return answers_.size() >= expected_;
    }
    std::map<ChildId, std::optional<std::string>> answers() const {
        const std::lock_guard lock(mutex_);
        return answers_;
    }

    // For the pool's thread. The first answer of a child counts.
    void answer(ChildId child, std::optional<std::string> text) {
        const std::lock_guard lock(mutex_);
        if (answers_.emplace(child, std::move(text)).second && answers_.size() == expected_)
            done_.notify();
    }

private:
    const std::size_t expected_;
    EventFd done_;
    mutable std::mutex mutex_;  // guards answers_
    std::map<ChildId, std::optional<std::string>> answers_;
};

}  // namespace sgpu
