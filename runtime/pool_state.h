// pool_state.h: what the pool's thread keeps of each process and of each call.
#pragma once

#include <sys/wait.h>

#include <array>
#include <csignal>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/output_pipe.h"
#include "runtime/rank_log.h"
#include "runtime/rank_pool.h"

namespace sgpu {

// How a process ended, as far as the guard could tell.
struct Exit {
    bool known = false;      // false: it never ran, or nobody was there to reap it
    int status = 0;          // wait status
    std::uint64_t peak = 0;  // bytes of memory that it has held at most

    bool killed() const { return known && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }
};

// One process below the guard, from the order to fork it until its end is settled.
//
//   ordered ──forked──► alive ──reaped, or never forked──► dead
struct Child {
    enum class State { ordered, alive, dead };
    enum class Kind { rank, service };
    State state = State::ordered;
    Kind kind = Kind::rank;
    Imports needed = Imports::all;
    std::string key;
    std::string entry;   // of a service
    std::string config;  // of a service
    std::chrono::milliseconds linger{0};
    pid_t pid = 0;
    UniqueFd socket;
    std::array<OutputPipe, 2> pipes;  // stdout, stderr
    std::deque<Message> marked;       // wait for their mark to come through both pipes
    std::uint32_t passed = 0;         // the highest mark that has come through
    std::optional<Clock::time_point>
        held_until;  // since a mark or a message waits for its other half
    struct Unsent {
        std::string bytes;
        UniqueFd buffer;
    };
    std::deque<Unsent> unsent;   // while the socket is full
    std::vector<UniqueFd> ends;  // its own ends, until it is forked
    int orders = 0;              // how often a fork server was asked for it
    std::int32_t processes = 0;  // process_limit() when it was
    CallId call = 0;             // the last call it was given
    std::size_t index = 0;       // its place in that call
    bool came_up = false;        // its agent has said hello
    std::string program;         // what it has become, if its channel went while it lived
    bool retired = false;        // its owner asks no more about it
    bool killed = false;         // by us: nobody else is to be blamed
    std::optional<Clock::time_point> retire_by;
    std::optional<Clock::time_point> silent_until;  // its channel is gone; then it is killed
    std::shared_ptr<QueryTicket> hello;
    std::map<std::uint64_t, std::shared_ptr<QueryTicket>> queries;  // by token
};

// A call and its output. Kept after its end for a while, as long as one of its ranks can print.
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
    bool reported = false;                      // the ticket is finished
    bool late = false;                          // it has output after that which is not shown yet
};

}  // namespace sgpu
