// call.h: one call on a set of ranks: who runs, who failed first, and when to press harder.
//
// Pure: it only decides. `now` is a parameter; what to do comes back as orders.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

namespace sgpu {

using Clock = std::chrono::steady_clock;

// What a rank has come to in a call. All but `running` are final.
//
//   running ──► returned   user code gave a value
//        ├────► raised     user code raised
//        └────► died       the process ended, or was given up, without an answer
enum class RankState { running, returned, raised, died };

// Why ranks are being ended. The first cause stays.
enum class EndCause { none, failure, stop, deadline };

// The ladder by which ranks that still run are ended.
//
//   none ──stop, deadline──► asked ──stuck──► cut_if_stuck ──stop_grace──► cut ──kill_grace──►
//   killed ──► given_up
//     └──failure, after failure_grace──────────────────────────────────────►┘
//
// A second Stop takes the next step at once, but it never gives up.
enum class Pressure { none, asked, cut_if_stuck, cut, killed, given_up };

// What the owner of the processes has to do now.
struct Order {
    enum class Kind {
        interrupt,     // signal the main thread
        cut_if_stuck,  // shut the collectives' sockets unless user code has seen the interrupt
        cut,           // signal again, and shut the sockets
        dump,          // take the Python stacks
        kill,          // SIGKILL the rank with all below it
    };
    Kind kind = Kind::interrupt;
    std::size_t index = 0;  // place of the rank in the call

    friend bool operator==(const Order&, const Order&) = default;
};

struct CallLimits {
    std::chrono::milliseconds failure_grace{5000};  // others may end by themselves after a failure
    std::chrono::milliseconds stuck{1000};       // to see an interrupt, before native waits are cut
    std::chrono::milliseconds stop_grace{5000};  // for user code to clean up after an interrupt
    std::chrono::milliseconds kill_grace{3000};  // between the cut and SIGKILL
    std::chrono::milliseconds give_up{5000};     // for the system to end what was killed
    std::optional<std::chrono::milliseconds> timeout;
};

// Threads: one at a time.
class Call {
public:
    struct Rank {
        RankState state = RankState::running;
        bool consequence = false;  // it failed after we had begun to end it
        Clock::time_point at{};    // when it ended
    };

    Call(std::size_t ranks, CallLimits limits, Clock::time_point now);

    // What happened to a rank, and when: `at` is before `now` if it is heard of later. The first
    // report of an end is kept, later ones are ignored.
    void ended(std::size_t index, RankState how, Clock::time_point now, Clock::time_point at);
    void ended(std::size_t index, RankState how, Clock::time_point now) {
        ended(index, how, now, now);
    }

    // The user pressed Stop.
    void stop(Clock::time_point now);

    // Ranks that still run after a failure cannot end by themselves: their grace is over.
    void cut_short(Clock::time_point now);

    // Takes the steps that are due and returns what they ask for.
    std::vector<Order> advance(Clock::time_point now);

    // When advance() has something to do even if nothing happens.
    std::optional<Clock::time_point> next_due() const;

    bool finished() const;
    EndCause cause() const { return cause_; }
    Pressure pressure() const { return pressure_; }
    const std::vector<Rank>& ranks() const { return ranks_; }
    Clock::time_point started() const { return started_; }

private:
    void begin_end(EndCause cause, Pressure first, Clock::time_point at);
    void take_step(Clock::time_point now, std::vector<Order>& orders);
    void order_all(Order::Kind kind, std::vector<Order>& orders) const;

    CallLimits limits_;
    Clock::time_point started_;
    std::vector<Rank> ranks_;
    EndCause cause_ = EndCause::none;
    Pressure pressure_ = Pressure::none;
    Pressure next_ = Pressure::none;  // the step that is taken at step_at_
    std::optional<Clock::time_point> step_at_;
    std::optional<Clock::time_point> pressed_at_;  // when we first did something to ranks
    bool deadline_passed_ = false;
};

}  // namespace sgpu
