// pool_thread.h: what the pool's thread owns and does. Nobody but rank_pool.cpp includes this.
#pragma once

#include <deque>
#include <map>
#include <set>

#include "runtime/call_logs.h"
#include "runtime/guard_link.h"
#include "runtime/packet_socket.h"
#include "runtime/pool_state.h"

namespace sgpu {

constexpr ChildId kStages = 1 + static_cast<ChildId>(Imports::all);

// Threads: the pool's thread only, but for the constructor and run().
class PoolThread {
public:
    PoolThread(RankPool& pool, UniqueFd link);

    // Returns after quit(), when every ticket has its end.
    void run();
    void quit();
    // The end of the guard shows at the link. REQUIRES: run() has returned.
    UniqueFd take_link() { return std::move(link_); }

    // What RankPool posts.
    void set_spares(int count);
    void warm(const std::vector<std::pair<ChildId, int>>& orders,
              const std::optional<std::string>& visible, Clock::time_point until);
    void order(const std::vector<ChildId>& ids, Imports needed);
    void retire(const std::vector<ChildId>& ids);
    void kill(const std::vector<ChildId>& ids);
    void begin_call(CallRequest request, const std::shared_ptr<CallTicket>& ticket);
    void stop(CallId id);
    void cut_short(CallId id);
    void start_service(ChildId id, std::string entry, std::string config,
                       std::chrono::milliseconds linger, Imports needed,
                       std::shared_ptr<QueryTicket> ticket);
    void whereabouts(const std::vector<ChildId>& ids, bool stack,
                     const std::shared_ptr<QueryTicket>& ticket);
    void fork_server_ready(std::shared_ptr<QueryTicket> ticket);

private:
    struct Watched;

    // pool_thread.cpp: the loop
    void turn();
    void run_posted();
    int wait_ms(Clock::time_point now) const;
    void act_on_time(Clock::time_point now);
    void collect(Watched& watched, Clock::time_point now) const;

    // pool_forks.cpp: the fork server and what is ordered from it
    void start_fork_server();
    void read_control();
    void fork_server_lost();
    void imported(const nlohmann::json& news);
    void no_fork_server();
    void fork_what_is_ordered();
    Sent send_order(const std::vector<ChildId>& ids);
    void forked(ChildId id, pid_t pid);
    void order_service_or_rank(ChildId id, Child child);
    void refill();
    void warm_new_spares();

    // pool_children.cpp: the lives and ends of processes
    void read_guard();
    void guard_lost();
    void all_lost();
    void never_forked(const std::vector<ChildId>& ids);
    void exited(pid_t pid, const Exit& exit);
    void came_up(ChildId id, Child& child, const Hello& hello);
    void died(ChildId id, const Exit& exit);
    MemoryEnd memory_end(const Child& child, const Exit& exit);
    void kill_tree(Child& child);
    void tell_guard(GuardPacket packet, int fd = -1);
    void trouble(const std::string& what, bool broken);

    // pool_channels.cpp: sockets and pipes
    bool send(ChildId id, const Body& body, const std::vector<std::string>& frames = {},
              int buffer = -1);
    void send_unsent(Child& child);
    void read_socket(ChildId id, Child& child);
    void read_pipes(ChildId id, Child& child);
    enum class Marks { wait, ignore };
    void settle(ChildId id, Child& child, Marks marks = Marks::wait);
    static bool pass_mark(Child& child);
    void deliver_first(ChildId id, Child& child);

    // pool_calls.cpp: calls and their output
    void text(ChildId id, const Child& child, Stream stream, const OutputPipe::Piece& piece);
    void message(ChildId id, Child& child, Message message);
    void show(CallId id, std::vector<Chunk> chunks);
    void show_late(CallId id, RunningCall& call, Clock::time_point now);
    void note_losses(CallId id, const RunningCall& call);
    void carry_out(RunningCall& call, const std::vector<Order>& orders);
    void finish_if_over(CallId id, RunningCall& call);
    void rank_ended(Child& child, RankState how, RankOutcome outcome, Clock::time_point at);
    void update_view(RunningCall& call);
    void drop_old_calls();
    bool call_runs() const;
    RunningCall* call_of(const Child& child);

    RankPool& pool_;
    UniqueFd link_;     // to the keeper
    UniqueFd control_;  // to the fork server
    bool quit_ = false;
    bool fork_server_up_ = false;
    int starts_that_failed_ = 0;        // of fork servers, in a row
    bool fork_server_refused_ = false;  // the guard could not fork it, and has said why
    std::map<ChildId, std::string> fork_server_times_;  // what fork_server_ready() answers
    std::vector<std::shared_ptr<QueryTicket>> ready_waiters_;

    std::map<ChildId, Child> children_;
    std::map<pid_t, ChildId> by_pid_;
    std::map<pid_t, Exit> early_exits_;  // reaped before the fork server told us the pid
    std::deque<ChildId> ordered_;        // to be forked
    int forks_under_way_ = 0;
    int spare_target_ = 0;
    std::optional<Clock::time_point> refill_at_;   // after a spare died that nobody had used
    std::optional<Clock::time_point> warm_until_;  // spares make CUDA contexts
    std::uint64_t next_token_ = 1;
    std::map<CallId, RunningCall> calls_;
    bool calls_to_drop_ = false;  // perhaps
    CallLogs logs_;
    Clock::time_point pipes_rest_until_{};
    MemoryWatch memory_;
    std::optional<std::uint64_t> memory_seen_;  // what it counted, less what has explained a death
};

}  // namespace sgpu
