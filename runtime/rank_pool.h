// rank_pool.h: owns all rank processes of a notebook: their channels, output, lives and ends.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/gpu/warm_plan.h"
#include "runtime/output_queue.h"
#include "runtime/pool_types.h"
#include "runtime/rank_log.h"
#include "runtime/ticket.h"

namespace sgpu {

class PoolThread;

// A private folder, a guard with a fork server below it, ranks below that, and one thread that owns
// every socket, pipe and table. A request returns at once with a ticket. Children can be given work
// before they are forked, even before the fork server is up: it waits for them in their socket.
//
// Threads: any thread may call any function; they post to the pool's thread.
// In a forked child of the notebook a copy of the pool only lets go.
class RankPool {
public:
    // Returns once the guard is started; the fork server comes up behind it.
    // Errors: Errc::os_failure if the folder, a socket or the guard cannot be made.
    static Result<std::unique_ptr<RankPool>> start(const PoolOptions& options);
    // Has the guard end all its processes and waits until it has. Calls under way end as lost, and
    // so does what is asked for later. REQUIRES: one thread at a time.
    void end();
    ~RankPool();  // end()
    RankPool(const RankPool&) = delete;
    RankPool& operator=(const RankPool&) = delete;

    // Keeps `count` forked children that nobody uses, from now on; those beyond are retired.
    void set_spares(int count);
    // Hands over `count` children, spares first. They are the caller's until retired or dead.
    std::vector<ChildId> take(int count, Imports needed = Imports::all);
    // From now on, until `idle` has passed without another such request, spares make their CUDA
    // contexts ahead, one on each of the first `devices`; `take` gives rank N the one for device N.
    // Then those that have one are replaced. `visible`: CUDA_VISIBLE_DEVICES, absent if not set;
    // spares that were warmed with another are replaced at once.
    void warm(int devices, const std::optional<std::string>& visible, std::chrono::seconds idle);
    // Replaces the spares that have a context, at once.
    void cool();
    // The spares that have one or are making it.
    std::vector<ChildId> warm_spares() const;
    // The ranks are asked to exit; those that have not after a bound are killed with all below
    // them.
    void retire(std::vector<ChildId> children);
    void kill(std::vector<ChildId> children);

    // A rank that the request cannot be sent to, as it is too long for a packet, dies.
    // REQUIRES: no member is in another call that still runs.
    std::shared_ptr<CallTicket> begin_call(CallRequest request);
    // The user pressed Stop; a second time: sooner.
    void stop(CallId call);
    // Ranks that still run after a failure wait for the one that failed: no need for their grace.
    void cut_short(CallId call);

    // Starts a helper process that runs `entry` ("module:function") with the JSON `config`. The
    // ticket's answer is what it reports once it is ready. With `linger` it may outlive the
    // notebook by that much, to finish its work.
    std::pair<ChildId, std::shared_ptr<QueryTicket>> start_service(const std::string& entry,
                                                                   const std::string& config,
                                                                   std::chrono::milliseconds linger,
                                                                   Imports needed);
    // Where children are, whatever they are stuck in: JSON of the fields of Stack (wire.md).
    // Without `stack` only what they wait for, and nothing of theirs is disturbed. A process that
    // the system has stopped does not answer, so the caller bounds its wait.
    enum class Ask { stack_too, collectives_only };
    std::shared_ptr<QueryTicket> whereabouts(const std::vector<ChildId>& children, Ask ask);
    // Answered for each stage of its imports, with what they took as JSON, when the fork server has
    // reached it.
    std::shared_ptr<QueryTicket> fork_server_ready();

    // Readable when there is output to take, and when the pool has broken.
    int output_fd() const { return output_ready_.fd(); }
    std::vector<OutputEvent> take_output();
    PoolPids pids() const;
    // Children that were handed over and have died before they were retired.
    std::map<ChildId, DeadChild> dead_children() const;
    const std::string& folder() const { return folder_; }
    std::string log_path(CallId call, int rank) const;
    // Of the calls whose logs are kept, what is missing there, by rank; only of those that have
    // ended.
    std::map<CallId, std::map<int, LogLoss>> log_losses() const;
    // "" while all is well, else one line on what died. A pool with a dead guard is of no more use.
    std::string trouble() const;
    bool broken() const;

private:
    friend class PoolThread;
    RankPool() = default;
    bool post(std::function<void()> work);  // to the pool's thread; false if that has ended
    void end_guard(const UniqueFd& link) const;
    std::vector<ChildId> unfit_spares();  // REQUIRES: mutex_ is held

    std::string folder_;
    pid_t notebook_ = 0;    // the process that made the pool
    pid_t guard_ = 0;       // the warden
    UniqueFd guard_alive_;  // its pidfd
    EventFd posted_ready_;
    EventFd output_ready_;

    mutable std::mutex mutex_;  // guards what follows, up to the thread
    std::vector<std::function<void()>> posted_;
    OutputQueue output_;
    PoolPids pids_;
    std::deque<ChildId> spares_;                // forked or ordered, and nobody's
    std::map<ChildId, std::int32_t> starting_;  // not up yet: the process_limit() they have
    WarmPlan warmth_;
    std::map<ChildId, DeadChild> dead_;
    std::map<CallId, std::map<int, LogLoss>> log_losses_;
    std::string trouble_;
    bool broken_ = false;
    bool ended_ = false;  // nobody takes what is posted
    ChildId next_child_ = 1;
    CallId next_call_ = 1;

    std::unique_ptr<PoolThread> core_;  // used by the pool's thread only
    std::thread thread_;
};

}  // namespace sgpu
