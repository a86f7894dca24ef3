// pool_children.cpp: the pool's processes: how they are forked, talked to, read and buried.
#include <fcntl.h>
#include <sys/wait.h>

#include <algorithm>
#include <random>

#include "runtime/pool_thread.h"

namespace sgpu {
namespace {

constexpr int kPipeSize = 256 * 1024;
constexpr std::size_t kForksPerOrder = 32;      // three descriptors each, in one packet
constexpr std::chrono::seconds kRetireGrace{2};  // for a rank's atexit handlers

std::string random_key() {
    std::random_device device;
    std::string key;
    for (int i = 0; i < 16; ++i) key += "0123456789abcdef"[device() % 16];
    return key;
}

}  // namespace

void PoolThread::start_fork_server() {
    auto control = packet_pair();
    if (!control) return trouble(control.error().message, false);
    auto& [ours, theirs] = control.value();
    control_ = std::move(ours);
    fork_server_up_ = false;
    tell_guard({GuardPacket::Kind::start_fork_server, 0, 0}, theirs.get());
}

void PoolThread::set_spares(int count) {
    spare_target_ = count;
    refill();
}

void PoolThread::order_service_or_rank(ChildId id, Child child) {
    child.key = random_key();
    if (const auto error = open_channels(child)) trouble(error->message, false);
    children_[id] = std::move(child);
    ordered_.push_back(id);
}

void PoolThread::order(const std::vector<ChildId>& ids) {
    for (const ChildId id : ids) order_service_or_rank(id, Child{});
}

void PoolThread::start_service(ChildId id, std::string entry, std::string config,
                               std::chrono::milliseconds linger,
                               std::shared_ptr<QueryTicket> ticket) {
    Child child;
    child.kind = Child::Kind::service;
    child.entry = std::move(entry);
    child.config = std::move(config);
    child.linger = linger;
    child.hello = std::move(ticket);
    order_service_or_rank(id, std::move(child));
}

std::optional<Error> PoolThread::open_channels(Child& child) {
    for (auto& pipe : child.pipes) {
        int p[2];
        if (::pipe2(p, O_CLOEXEC) != 0) return os_error("pipe for the output of a rank");
        ::fcntl(p[0], F_SETFL, O_NONBLOCK);
        ::fcntl(p[0], F_SETPIPE_SZ, kPipeSize);
        pipe = OutputPipe(UniqueFd(p[0]), child.key);
        child.ends.emplace_back(p[1]);
    }
    auto pair = packet_pair();
    if (!pair) return pair.error();
    child.socket = std::move(pair.value().first);
    child.ends.push_back(std::move(pair.value().second));
    return std::nullopt;
}

void PoolThread::refill() {
    const bool busy = std::any_of(calls_.begin(), calls_.end(),
                                  [](const auto& entry) { return !entry.second.reported; });
    // While a call runs the machine is the user's; spares wait.
    if (!fork_server_up_ || busy || forks_under_way_ > 0) return;
    std::vector<ChildId> ids;
    {
        const std::lock_guard lock(pool_.mutex_);
        while (static_cast<int>(pool_.spares_.size()) < spare_target_) {
            ids.push_back(pool_.next_child_);
            pool_.spares_.push_back(pool_.next_child_++);
        }
    }
    order(ids);
}

void PoolThread::fork_what_is_ordered() {
    if (ordered_.empty()) return;
    if (!control_ && link_) start_fork_server();
    if (!fork_server_up_) return;
    while (!ordered_.empty()) {
        const auto count = std::min(ordered_.size(), kForksPerOrder);
        const auto end = ordered_.begin() + static_cast<std::ptrdiff_t>(count);
        const std::vector<ChildId> ids(ordered_.begin(), end);
        ordered_.erase(ordered_.begin(), end);
        if (!send_order(ids)) never_forked(ids);
    }
}

bool PoolThread::send_order(const std::vector<ChildId>& ids) {
    nlohmann::json list = nlohmann::json::array();
    std::vector<int> fds;
    for (const ChildId id : ids) {
        const auto found = children_.find(id);
        if (found == children_.end()) continue;
        Child& child = found->second;
        if (child.ends.size() != 3) return false;
        nlohmann::json entry = {{"id", id}, {"key", child.key}};
        if (child.kind == Child::Kind::service) {
            entry["service"] = child.entry;
            entry["config"] = nlohmann::json::parse(child.config, nullptr, false);
        }
        list.push_back(std::move(entry));
        for (const auto& end : child.ends) fds.push_back(end.get());
    }
    const std::string order = nlohmann::json{{"children", list}}.dump();
    if (send_packet(control_.get(), order, fds, Wait::yes) != Sent::yes) return false;
    ++forks_under_way_;
    // A kept write end would hide the rank's end.
    for (const ChildId id : ids)
        if (const auto found = children_.find(id); found != children_.end()) found->second.ends.clear();
    return true;
}

void PoolThread::never_forked(const std::vector<ChildId>& ids) {
    for (const ChildId id : ids)
        if (children_.contains(id)) died(id, 0, false);
}

void PoolThread::read_control() {
    while (control_) {
        auto packet = recv_packet(control_.get());
        if (!packet) return;
        if (packet->bytes.empty()) {
            control_.reset();
            fork_server_up_ = false;
            forks_under_way_ = 0;
            trouble("the fork server ended", false);
            for (auto& waiter : std::exchange(ready_waiters_, {})) waiter->answer(0, std::nullopt);
            std::vector<ChildId> lost;
            for (const auto& [id, child] : children_)
                if (child.state == Child::State::ordered && child.ends.empty()) lost.push_back(id);
            // One that never came up will not come up for those in the queue either.
            if (fork_server_times_.empty()) lost.insert(lost.end(), ordered_.begin(), ordered_.end());
            if (fork_server_times_.empty()) ordered_.clear();
            never_forked(lost);
            return;
        }
        const auto news = nlohmann::json::parse(packet->bytes, nullptr, false);
        if (!news.is_object()) continue;
        if (news.contains("ready")) {
            fork_server_up_ = true;
            fork_server_times_ = news["ready"].dump();
            for (auto& waiter : std::exchange(ready_waiters_, {}))
                waiter->answer(0, fork_server_times_);
        }
        if (!news.contains("forked")) continue;
        forks_under_way_ = std::max(0, forks_under_way_ - 1);
        for (const auto& [id, pid] : news["forked"].items())
            forked(static_cast<ChildId>(std::stoul(id)), pid.get<pid_t>());
        if (forks_under_way_ == 0) early_exits_.clear();
    }
}

void PoolThread::forked(ChildId id, pid_t pid) {
    const auto found = children_.find(id);
    if (found == children_.end()) return;
    if (pid <= 0) return never_forked({id});
    Child& child = found->second;
    child.pid = pid;
    child.state = Child::State::alive;
    by_pid_[pid] = id;
    {
        const std::lock_guard lock(pool_.mutex_);
        pool_.pids_.children[id] = pid;
    }
    if (child.linger.count() > 0)
        tell_guard({GuardPacket::Kind::let_linger, pid, static_cast<int>(child.linger.count())});
    if (const auto early = early_exits_.extract(pid)) exited(pid, early.mapped());
}

void PoolThread::read_guard() {
    while (link_) {
        auto packet = recv_packet(link_.get());
        if (!packet) return;
        GuardPacket news;
        if (packet->bytes.size() != sizeof news) return guard_lost();
        std::copy_n(packet->bytes.data(), sizeof news, reinterpret_cast<char*>(&news));
        if (news.kind == GuardPacket::Kind::exited) exited(news.pid, news.number);
        if (news.kind == GuardPacket::Kind::started) {
            const std::lock_guard lock(pool_.mutex_);
            pool_.pids_.fork_server = news.pid;
        }
    }
}

// Whatever the guard watched over ends with it: nobody will report the ranks any more.
void PoolThread::guard_lost() {
    link_.reset();
    control_.reset();
    fork_server_up_ = false;
    trouble("the guard process ended, and all ranks with it", true);
    std::vector<ChildId> lost;
    for (const auto& [id, child] : children_) lost.push_back(id);
    for (const ChildId id : lost) died(id, 0, false);
    for (auto& waiter : std::exchange(ready_waiters_, {})) waiter->answer(0, std::nullopt);
}

void PoolThread::exited(pid_t pid, int status) {
    const auto found = by_pid_.find(pid);
    if (found != by_pid_.end()) {
        died(found->second, status, true);
        return;
    }
    // Kept only while it can be a rank whose pid we are about to learn; else it is an orphan's end,
    // and its pid may come back as a rank's.
    if (forks_under_way_ > 0) early_exits_[pid] = status;
}

void PoolThread::died(ChildId id, int status, bool exit_known) {
    const auto found = children_.find(id);
    if (found == children_.end()) return;
    Child& child = found->second;
    // All it sent and wrote lies in the socket and the pipes: take it before saying that it is dead.
    if (child.state == Child::State::alive) read_socket(id, child);
    child.state = Child::State::dead;
    for (OutputPipe& pipe : child.pipes) pipe.drain();
    settle(id, child);
    RankOutcome outcome;
    outcome.status = status;
    outcome.exit_known = exit_known;
    rank_ended(child, RankState::died, std::move(outcome));
    if (child.hello) child.hello->answer(id, std::nullopt);
    for (auto& [token, query] : child.queries) query->answer(id, std::nullopt);
    {
        const std::lock_guard lock(pool_.mutex_);
        pool_.pids_.children.erase(id);
        std::erase(pool_.spares_, id);
        pool_.dead_.push_back(id);
    }
    by_pid_.erase(child.pid);
    std::erase(ordered_, id);
    children_.erase(found);
}

void PoolThread::retire(const std::vector<ChildId>& ids) {
    for (const ChildId id : ids) {
        const auto found = children_.find(id);
        if (found == children_.end()) continue;
        if (found->second.state == Child::State::ordered) {
            never_forked({id});
            continue;
        }
        send(id, Quit{});
        found->second.retire_by = Clock::now() + kRetireGrace;
    }
}

void PoolThread::kill(const std::vector<ChildId>& ids) {
    for (const ChildId id : ids) {
        const auto found = children_.find(id);
        if (found == children_.end()) continue;
        if (found->second.state == Child::State::alive)
            tell_guard({GuardPacket::Kind::kill_tree, found->second.pid, 0});
        else
            never_forked({id});
    }
}

void PoolThread::fork_server_ready(std::shared_ptr<QueryTicket> ticket) {
    if (fork_server_up_) return ticket->answer(0, fork_server_times_);
    if (!link_) return ticket->answer(0, std::nullopt);
    ready_waiters_.push_back(std::move(ticket));
    if (!control_) start_fork_server();
}

}  // namespace sgpu
