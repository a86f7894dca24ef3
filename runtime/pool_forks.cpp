// pool_forks.cpp: the fork server, what is ordered from it, and what it says.
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <random>

#include "runtime/pool_thread.h"

namespace sgpu {
namespace {

constexpr int kPipeSize = 256 * 1024;
constexpr std::size_t kFdsPerChild = 3;
constexpr std::int64_t kKeptForTheNotebook = 32;
constexpr std::size_t kForksPerOrder = 32;  // all their descriptors go in one packet
constexpr int kMaxStarts = 2;               // in a row: it may have been killed while it came up
constexpr int kMaxOrders = 3;               // fork servers that may die of one child

std::string random_key() {
    std::random_device device;
    std::string key;
    for (int i = 0; i < 16; ++i) key += "0123456789abcdef"[device() % 16];
    return key;
}

std::optional<Error> open_channels(Child& child) {
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

std::uint64_t descriptor_limit() {
    rlimit limit{};
    return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

std::string out_of_descriptors() {
    return "the notebook is out of file descriptors (ulimit -n is " +
           std::to_string(descriptor_limit()) + " and each rank takes " +
           std::to_string(kFdsPerChild) + "): raise it with resource.setrlimit, or use fewer ranks";
}

// How many spares may be made so that the notebook still has descriptors for its own work.
int affordable_spares() {
    std::error_code ignored;
    const std::filesystem::directory_iterator open("/proc/self/fd", ignored);
    if (ignored) return 0;  // no descriptor for that either
    const auto used = std::distance(begin(open), end(open)) + kKeptForTheNotebook;
    const auto limit = static_cast<std::int64_t>(descriptor_limit());
    // Until it is forked, a child's own ends are ours too.
    return static_cast<int>(std::max<std::int64_t>(0, limit - used) /
                            static_cast<std::int64_t>(2 * kFdsPerChild));
}

ChildId child_of(const std::string& text) {
    ChildId id = 0;
    std::from_chars(text.data(), text.data() + text.size(), id);
    return id;
}

}  // namespace

void PoolThread::start_fork_server() {
    auto control = packet_pair();
    if (!control) return trouble(control.error().message, false);
    auto& [ours, theirs] = control.value();
    control_ = std::move(ours);
    tell_guard({GuardPacket::Kind::start_fork_server, 0, process_limit()}, theirs.get());
}

void PoolThread::set_spares(int count) {
    spare_target_ = count;
    std::vector<ChildId> surplus;
    {
        const std::lock_guard lock(pool_.mutex_);
        while (static_cast<int>(pool_.spares_.size()) > std::max(0, spare_target_)) {
            surplus.push_back(pool_.spares_.back());
            pool_.spares_.pop_back();
        }
    }
    retire(surplus);
}

void PoolThread::order_service_or_rank(ChildId id, Child child) {
    child.key = random_key();
    const auto error = open_channels(child);
    children_[id] = std::move(child);
    ordered_.push_back(id);
    if (!error) return;
    trouble(error->os_errno == EMFILE ? out_of_descriptors() : error->message, false);
    never_forked({id});
}

void PoolThread::order(const std::vector<ChildId>& ids, Imports needed) {
    for (const ChildId id : ids) {
        Child child;
        child.needed = needed;
        order_service_or_rank(id, std::move(child));
    }
}

void PoolThread::start_service(ChildId id, std::string entry, std::string config,
                               std::chrono::milliseconds linger, Imports needed,
                               std::shared_ptr<QueryTicket> ticket) {
    Child child;
    child.kind = Child::Kind::service;
    child.needed = needed;
    child.entry = std::move(entry);
    child.config = std::move(config);
    child.linger = linger;
    child.hello = std::move(ticket);
    order_service_or_rank(id, std::move(child));
}

void PoolThread::refill() {
    if (refill_at_ && Clock::now() >= *refill_at_) refill_at_.reset();
    // While a call runs the machine is the user's; spares wait.
    if (!fork_server_up_ || call_runs() || forks_under_way_ > 0 || refill_at_) return;
    std::vector<ChildId> ids;
    {
        const std::lock_guard lock(pool_.mutex_);
        const int there = static_cast<int>(pool_.spares_.size());
        if (there >= spare_target_) return;
        const int wanted = std::min(spare_target_, there + affordable_spares());
        // Looked at again when a rank has ended.
        while (static_cast<int>(pool_.spares_.size()) < wanted) {
            ids.push_back(pool_.next_child_);
            pool_.spares_.push_back(pool_.next_child_++);
        }
    }
    order(ids, Imports::all);
}

void PoolThread::warm(const std::vector<std::pair<ChildId, int>>& orders,
                      const std::optional<std::string>& visible, Clock::time_point until) {
    warm_until_ = until;
    // Those that are not forked yet find the message in their socket.
    for (const auto& [id, device] : orders)
        send(id, Warm{device, visible.has_value(), visible.value_or("")});
}

void PoolThread::warm_new_spares() {
    if (!warm_until_) return;
    std::vector<std::pair<ChildId, int>> orders;
    std::optional<std::string> visible;
    {
        const std::lock_guard lock(pool_.mutex_);
        orders = pool_.warmth_.assign(pool_.spares_);
        visible = pool_.warmth_.visible();
    }
    if (!orders.empty()) warm(orders, visible, *warm_until_);
}

void PoolThread::fork_what_is_ordered() {
    while (!ordered_.empty()) {
        if (!control_ && link_) start_fork_server();
        if (!control_) return never_forked({ordered_.begin(), ordered_.end()});
        // It may still be importing: it carries out each order when it can.
        const Imports needed = children_.at(ordered_.front()).needed;
        const auto limit = ordered_.begin() +
                           static_cast<std::ptrdiff_t>(std::min(ordered_.size(), kForksPerOrder));
        const auto end = std::find_if(
            ordered_.begin(), limit, [&](ChildId id) { return children_.at(id).needed != needed; });
        const std::vector<ChildId> ids(ordered_.begin(), end);
        const Sent sent = send_order(ids);
        if (sent == Sent::full) return;  // its next answer brings us back here
        if (sent == Sent::yes) ordered_.erase(ordered_.begin(), end);
        if (sent != Sent::gone) continue;
        read_control();  // if it is dead, another one forks them
        if (control_) never_forked(ids);
    }
}

Sent PoolThread::send_order(const std::vector<ChildId>& ids) {
    nlohmann::json list = nlohmann::json::array();
    std::vector<int> fds;
    for (const ChildId id : ids) {
        const Child& child = children_.at(id);
        nlohmann::json entry = {{"id", id}, {"key", child.key}};
        if (child.kind == Child::Kind::service) {
            entry["service"] = child.entry;
            entry["config"] = nlohmann::json::parse(child.config, nullptr, false);
        }
        list.push_back(std::move(entry));
        for (const auto& end : child.ends) fds.push_back(end.get());
    }
    const nlohmann::json asked{{"children", list},
                               {"processes", process_limit()},
                               {"imports", children_.at(ids.front()).needed}};
    const std::string order = asked.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    const Sent sent = send_packet(control_.get(), order, fds, Wait::no);
    if (sent != Sent::yes) return sent;
    ++forks_under_way_;
    const std::lock_guard lock(pool_.mutex_);
    for (const ChildId id : ids) {
        ++children_.at(id).orders;
        pool_.starting_[id] = children_.at(id).processes = process_limit();
    }
    return sent;
}

void PoolThread::read_control() {
    while (control_) {
        auto packet = recv_packet(control_.get());
        if (!packet) return;
        if (packet->bytes.empty()) return fork_server_lost();
        const auto news = nlohmann::json::parse(packet->bytes, nullptr, false);
        if (!news.is_object()) continue;
        if (news.contains("imported")) imported(news["imported"]);
        if (news.contains("error") && news["error"].is_string())
            trouble(news["error"].get<std::string>(), false);
        if (!news.contains("forked")) continue;
        forks_under_way_ = std::max(0, forks_under_way_ - 1);
        for (const auto& [id, pid] : news["forked"].items())
            if (pid.is_number_integer()) forked(child_of(id), pid.get<pid_t>());
        if (forks_under_way_ == 0) early_exits_.clear();
    }
}

void PoolThread::imported(const nlohmann::json& news) {
    const auto stage = news.value("stage", ChildId{0});
    fork_server_times_[stage] = news.dump();
    for (const auto& waiter : ready_waiters_) waiter->answer(stage, fork_server_times_[stage]);
    if (stage + 1 < kStages) return;
    fork_server_up_ = true;
    starts_that_failed_ = 0;
    ready_waiters_.clear();
}

void PoolThread::fork_server_lost() {
    control_.reset();
    const bool refused = std::exchange(fork_server_refused_, false);
    if (!refused) trouble("the fork server ended", false);
    // One that does not come up will not come up for those in the queue either.
    const bool hopeless = refused || (!fork_server_up_ && ++starts_that_failed_ == kMaxStarts);
    if (hopeless) starts_that_failed_ = 0;
    // What was asked of it and not done is asked of the next one. Those children still have their
    // own ends, and what was sent to them waits there.
    std::vector<ChildId> lost;
    ordered_.clear();
    for (const auto& [id, child] : children_) {
        if (child.state != Child::State::ordered) continue;
        if (hopeless || child.orders >= kMaxOrders)
            lost.push_back(id);
        else
            ordered_.push_back(id);
    }
    no_fork_server();
    forks_under_way_ = 0;
    early_exits_.clear();
    never_forked(lost);
}

void PoolThread::forked(ChildId id, pid_t pid) {
    const auto early = early_exits_.extract(pid);
    const auto found = children_.find(id);
    if (found == children_.end()) {
        // Retired or killed while it was being forked.
        if (pid > 0 && !early) tell_guard({GuardPacket::Kind::kill_tree, pid, 0});
        return;
    }
    Child& child = found->second;
    if (pid <= 0) {
        // Refused by a limit that has been raised meanwhile.
        const bool again = child.processes != process_limit() && child.orders < kMaxOrders;
        if (!again) return never_forked({id});
        ordered_.push_back(id);
        return;
    }
    child.pid = pid;
    child.state = Child::State::alive;
    child.ends.clear();  // a kept write end would hide the rank's end
    by_pid_[pid] = id;
    {
        const std::lock_guard lock(pool_.mutex_);
        pool_.pids_.children[id] = pid;
    }
    if (child.linger.count() > 0)
        tell_guard({GuardPacket::Kind::let_linger, pid, static_cast<int>(child.linger.count())});
    if (early) exited(pid, early.mapped());
}

void PoolThread::fork_server_ready(std::shared_ptr<QueryTicket> ticket) {
    if (!control_ && link_) start_fork_server();
    for (const auto& [stage, times] : fork_server_times_) ticket->answer(stage, times);
    if (!fork_server_up_) ready_waiters_.push_back(std::move(ticket));
    if (!control_) no_fork_server();
}

void PoolThread::no_fork_server() {
    fork_server_up_ = false;
    fork_server_times_.clear();
    for (const auto& waiter : std::exchange(ready_waiters_, {}))
        for (ChildId stage = 0; stage < kStages; ++stage) waiter->answer(stage, std::nullopt);
}

}  // namespace sgpu
