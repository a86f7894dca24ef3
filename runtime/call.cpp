#include "runtime/call.h"

#include <algorithm>

namespace sgpu {

Call::Call(std::size_t ranks, CallLimits limits, Clock::time_point now)
    : limits_(limits), started_(now), ranks_(ranks) {}

bool Call::finished() const {
    return std::none_of(ranks_.begin(), ranks_.end(),
                        [](const Rank& r) { return r.state == RankState::running; });
}

void Call::ended(std::size_t index, RankState how, Clock::time_point now, Clock::time_point at) {
    Rank& rank = ranks_.at(index);
    if (rank.state != RankState::running || how == RankState::running) return;
    rank.state = how;
    rank.at = std::clamp(at, started_, std::max(now, started_));
    // What it raised before we touched it is its own, however late we hear of it.
    rank.consequence = how != RankState::returned && pressed_at_ && rank.at >= *pressed_at_;
    if (how != RankState::returned && cause_ == EndCause::none)
        begin_end(EndCause::failure, Pressure::cut, now + limits_.failure_grace);
}

void Call::stop(Clock::time_point now) {
    // What was killed ends when the system has ended it; impatience does not make it sooner.
    if (finished() || pressure_ == Pressure::killed) return;
    // A Stop while others only have their grace after a failure ends that grace.
    if (pressure_ == Pressure::none && cause_ != EndCause::none) {
        begin_end(cause_, Pressure::asked, now);
        return;
    }
    begin_end(EndCause::stop, pressure_ == Pressure::none ? Pressure::asked : next_, now);
}

void Call::cut_short(Clock::time_point now) {
    if (cause_ == EndCause::failure && pressure_ == Pressure::none && step_at_) step_at_ = now;
}

void Call::begin_end(EndCause cause, Pressure first, Clock::time_point at) {
    if (cause_ == EndCause::none) cause_ = cause;
    next_ = first;
    step_at_ = at;
}

std::vector<Order> Call::advance(Clock::time_point now) {
    std::vector<Order> orders;
    if (limits_.timeout && !deadline_passed_ && now >= started_ + *limits_.timeout && !finished()) {
        deadline_passed_ = true;
        if (cause_ == EndCause::none) {
            order_all(Order::Kind::dump, orders);
            begin_end(EndCause::deadline, Pressure::asked, now);
        }
    }
    while (step_at_ && now >= *step_at_ && !finished()) take_step(now, orders);
    return orders;
}

void Call::take_step(Clock::time_point now, std::vector<Order>& orders) {
    pressure_ = next_;
    if (!pressed_at_) pressed_at_ = now;
    switch (next_) {
        case Pressure::asked:
            order_all(Order::Kind::interrupt, orders);
            begin_end(cause_, Pressure::cut_if_stuck, now + limits_.stuck);
            return;
        case Pressure::cut_if_stuck:
            order_all(Order::Kind::cut_if_stuck, orders);
            begin_end(cause_, Pressure::cut, now + limits_.stop_grace - limits_.stuck);
            return;
        case Pressure::cut:
            order_all(Order::Kind::cut, orders);
            begin_end(cause_, Pressure::killed, now + limits_.kill_grace);
            return;
        case Pressure::killed:
            order_all(Order::Kind::kill, orders);
            begin_end(cause_, Pressure::given_up, now + limits_.give_up);
            return;
        case Pressure::none:
        case Pressure::given_up:
            step_at_.reset();
            for (std::size_t i = 0; i < ranks_.size(); ++i) ended(i, RankState::died, now);
            return;
    }
}

void Call::order_all(Order::Kind kind, std::vector<Order>& orders) const {
    for (std::size_t i = 0; i < ranks_.size(); ++i)
        if (ranks_[i].state == RankState::running) orders.push_back({kind, i});
}

std::optional<Clock::time_point> Call::next_due() const {
    if (finished()) return std::nullopt;
    auto due = step_at_;
    if (limits_.timeout && !deadline_passed_) {
        const auto deadline = started_ + *limits_.timeout;
        due = due ? std::min(*due, deadline) : deadline;
    }
    return due;
}

}  // namespace sgpu
