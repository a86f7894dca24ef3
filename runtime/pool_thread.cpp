// pool_thread.cpp: the loop of the pool's thread: one wait over everything, and what it finds.
#include "runtime/pool_thread.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <algorithm>

namespace sgpu {
namespace {

// A wait on a pipe makes each write() of a rank wake this thread. Resting between two looks lets a
// flood run at the speed of memory; a message with a mark has its pipes read at once anyway.
constexpr std::chrono::milliseconds kPipeRest{2};

}  // namespace

struct PoolThread::Watched {
    std::vector<pollfd> items;
    std::vector<ChildId> order;  // three items each: socket, stdout, stderr
    std::size_t first_child = 0;
};

PoolThread::PoolThread(RankPool& pool, UniqueFd link)
    : pool_(pool), link_(std::move(link)), logs_(pool.folder() + "/logs") {}

void PoolThread::run() {
    ::prctl(PR_SET_NAME, "sgpu-pool");
    start_fork_server();
    while (!quit_) turn();
    // Who waits for a ticket must not wait for ever.
    {
        const std::lock_guard lock(pool_.mutex_);
        pool_.ended_ = true;
    }
    run_posted();
    all_lost();
    act_on_time(Clock::now());
}

void PoolThread::quit() {
    trouble("the notebook has ended the rank processes", true);
    tell_guard({GuardPacket::Kind::quit, 0, 0});
    quit_ = true;
}

void PoolThread::collect(Watched& watched, Clock::time_point now) const {
    watched.items = {{pool_.posted_ready_.fd(), POLLIN, 0},
                     {link_.get(), POLLIN, 0},
                     {control_.get(), POLLIN, 0}};
    watched.first_child = watched.items.size();
    const bool rest = now < pipes_rest_until_;
    for (const auto& [id, child] : children_) {
        watched.order.push_back(id);
        const short io = child.unsent.empty() ? POLLIN : POLLIN | POLLOUT;
        const bool alive = child.state == Child::State::alive;
        watched.items.push_back({alive ? child.socket.get() : -1, io, 0});
        for (const OutputPipe& pipe : child.pipes) {
            // A pipe that has come to a mark waits there for the other pipe and the message.
            const bool look = alive && !rest && pipe.pieces.empty();
            watched.items.push_back({look ? pipe.fd() : -1, POLLIN, 0});
        }
    }
}

int PoolThread::wait_ms(Clock::time_point now) const {
    std::optional<Clock::time_point> due;
    const auto sooner = [&due](std::optional<Clock::time_point> other) {
        if (other && (!due || *other < *due)) due = other;
    };
    if (now < pipes_rest_until_) sooner(pipes_rest_until_);
    for (const auto& [id, call] : calls_) {
        if (call.reported && !call.late) continue;
        sooner(call.state.next_due());
        sooner(call.mux.next_due());
        sooner(call.view_due);
    }
    for (const auto& [id, child] : children_) {
        sooner(child.retire_by);
        sooner(child.silent_until);
        sooner(child.held_until);
    }
    sooner(refill_at_);
    sooner(warm_until_);
    if (!due) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*due - now).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

void PoolThread::turn() {
    Watched watched;
    // One time for both: pipes that are left out for their rest must end the wait when it is over.
    const auto now = Clock::now();
    collect(watched, now);
    ::poll(watched.items.data(), watched.items.size(), wait_ms(now));

    if (watched.items[0].revents) run_posted();
    bool wrote = false;
    for (std::size_t i = 0; i < watched.order.size(); ++i) {
        const auto found = children_.find(watched.order[i]);
        if (found == children_.end()) continue;
        const pollfd* item = &watched.items[watched.first_child + 3 * i];
        if (item[1].revents || item[2].revents) {
            read_pipes(found->first, found->second);
            wrote = true;
        }
        if (item[0].revents & POLLOUT) send_unsent(found->second);
        if (item[0].revents & ~POLLOUT) read_socket(found->first, found->second);
    }
    if (wrote) pipes_rest_until_ = Clock::now() + kPipeRest;
    // The guard first: it told of the fork server before that one said that it is ready.
    if (watched.items[1].revents && link_) read_guard();
    if (watched.items[2].revents && control_) read_control();
    act_on_time(Clock::now());
}

void PoolThread::run_posted() {
    pool_.posted_ready_.take();
    std::vector<std::function<void()>> work;
    {
        const std::lock_guard lock(pool_.mutex_);
        work.swap(pool_.posted_);
    }
    for (auto& w : work) w();
}

void PoolThread::act_on_time(Clock::time_point now) {
    for (auto& [id, child] : children_) {
        if (child.held_until && now >= *child.held_until) settle(id, child, Marks::ignore);
        if (child.silent_until && now >= *child.silent_until) {
            child.silent_until.reset();
            kill_tree(child);
        }
        if (!child.retire_by || now < *child.retire_by) continue;
        child.retire_by.reset();
        kill_tree(child);
    }
    for (auto& [id, call] : calls_) {
        if (call.reported) {
            if (call.late) show_late(id, call, now);
            continue;
        }
        carry_out(call, call.state.advance(now));
        show(id, call.mux.take(now));
        if (call.view_due && now >= *call.view_due) update_view(call);
        finish_if_over(id, call);
    }
    drop_old_calls();
    refill();
    if (warm_until_ && now >= *warm_until_) {
        warm_until_.reset();
        pool_.cool();
    }
    warm_new_spares();
    fork_what_is_ordered();
}

}  // namespace sgpu
