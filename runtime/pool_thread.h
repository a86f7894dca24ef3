// pool_thread.h: what the pool's thread owns and does. Nobody but rank_pool.cpp includes this.
#pragma once

#include <deque>
#include <map>
#include <set>

#include "runtime/guard_link.h"
#include "runtime/output_pipe.h"
#include "runtime/packet_socket.h"
#include "runtime/rank_log.h"
#include "runtime/rank_pool.h"

namespace sgpu {

// One process below the guard, from the order to fork it until its end is settled.
//
//   ordered ──forked──► alive ──reaped, or never forked──► dead
struct Child {
    enum class State { ordered, alive, dead };
    enum class Kind { rank, service };
    State state = State::ordered;
    Kind kind = Kind::rank;
    std::string key;
    std::string entry;   // of a service
    std::string config;  // of a service
    std::chrono::milliseconds linger{0};
    pid_t pid = 0;
    UniqueFd socket;
    OutputPipe pipes[2];
    std::deque<Message> marked;  // wait for their mark to come through both pipes
    struct Unsent {
        std::string bytes;
        UniqueFd buffer;
    };
    std::deque<Unsent> unsent;  // while the socket is full
    std::vector<UniqueFd> ends;  // its own ends, until it is forked
    CallId call = 0;             // the last call it was given
    std::size_t index = 0;       // its place in that call
    std::optional<Clock::time_point> retire_by;
    std::shared_ptr<QueryTicket> hello;
    std::map<std::uint64_t, std::shared_ptr<QueryTicket>> queries;  // by token
};

// A call and its output. Kept after its end for as long as one of its ranks can still print.
struct RunningCall {
    RunningCall(CallRequest r, std::shared_ptr<CallTicket> t, Clock::time_point now)
        : request(std::move(r)),
          ticket(std::move(t)),
          state(request.members.size(), request.limits, now),
          mux(request.output),
          outcomes(request.members.size()) {}

    CallRequest request;
    std::shared_ptr<CallTicket> ticket;
    Call state;
    OutputMux mux;
    std::vector<RankOutcome> outcomes;
    std::vector<RankLog> logs;
    std::map<int, std::string> stacks;
    std::optional<Clock::time_point> view_due;  // something has changed since the last view
    bool reported = false;  // the ticket is finished
};

// Threads: the pool's thread only, but for the constructor and run().
class PoolThread {
public:
    PoolThread(RankPool& pool, UniqueFd link, UniqueFd guard_alive, PoolOptions options);

    void run();  // returns after quit()
    void quit();

    // What RankPool posts.
    void set_spares(int count);
    void order(const std::vector<ChildId>& ids);
    void retire(const std::vector<ChildId>& ids);
    void kill(const std::vector<ChildId>& ids);
    void begin_call(CallRequest request, std::shared_ptr<CallTicket> ticket);
    void stop(CallId call);
    void start_service(ChildId id, std::string entry, std::string config,
                       std::chrono::milliseconds linger, std::shared_ptr<QueryTicket> ticket);
    void stacks(const std::vector<ChildId>& ids, std::shared_ptr<QueryTicket> ticket);
    void fork_server_ready(std::shared_ptr<QueryTicket> ticket);

private:
    struct Watched;

    // pool_thread.cpp: the loop
    void turn();
    void run_posted();
    int wait_ms(Clock::time_point now) const;
    void act_on_time(Clock::time_point now);
    void collect(Watched& watched) const;

    // pool_children.cpp: processes, sockets and pipes
    void start_fork_server();
    void read_control();
    void read_guard();
    void guard_lost();
    void fork_what_is_ordered();
    bool send_order(const std::vector<ChildId>& ids);
    std::optional<Error> open_channels(Child& child);
    void forked(ChildId id, pid_t pid);
    void never_forked(const std::vector<ChildId>& ids);
    void order_service_or_rank(ChildId id, Child child);
    void exited(pid_t pid, int status);
    void died(ChildId id, int status, bool exit_known);
    void send(ChildId id, const Body& body, const std::vector<std::string>& frames = {},
              int buffer = -1);
    void send_unsent(Child& child);
    void read_socket(ChildId id, Child& child);
    void read_pipes(ChildId id, Child& child);
    void settle(ChildId id, Child& child);
    void refill();
    void tell_guard(GuardPacket packet, int fd = -1);
    void trouble(const std::string& what, bool broken);

    // pool_calls.cpp: calls and their output
    void text(Child& child, Stream stream, std::string bytes);
    void message(ChildId id, Child& child, Message message);
    void show(CallId id, RunningCall& call, std::vector<Chunk> chunks);
    void carry_out(RunningCall& call, const std::vector<Order>& orders);
    void finish_if_over(CallId id, RunningCall& call);
    void rank_ended(Child& child, RankState how, RankOutcome outcome);
    void update_view(RunningCall& call);
    void drop_old_calls();
    RunningCall* call_of(const Child& child);

    RankPool& pool_;
    const PoolOptions options_;
    UniqueFd link_;         // to the keeper
    UniqueFd guard_alive_;  // pidfd of the warden
    UniqueFd control_;      // to the fork server
    bool quit_ = false;
    bool fork_server_up_ = false;
    std::string fork_server_times_;
    std::vector<std::shared_ptr<QueryTicket>> ready_waiters_;

    std::map<ChildId, Child> children_;
    std::map<pid_t, ChildId> by_pid_;
    std::map<pid_t, int> early_exits_;  // reaped before the fork server told us the pid
    std::deque<ChildId> ordered_;       // to be forked
    int forks_under_way_ = 0;
    int spare_target_ = 0;
    std::uint64_t next_token_ = 1;
    std::map<CallId, RunningCall> calls_;
    Clock::time_point pipes_rest_until_{};
};

}  // namespace sgpu
