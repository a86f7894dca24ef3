// pool_children.cpp: the pool's processes: what the guard says of them, and how they end.
#include <algorithm>
#include <cstring>

#include "runtime/pool_thread.h"

namespace sgpu {
namespace {

constexpr std::chrono::seconds kRetireGrace{2};  // for a rank's atexit handlers
constexpr std::uint64_t kMebibyte = 1024ULL * 1024;
constexpr std::chrono::seconds kSparePause{1};  // else spares that die at their start keep us busy

}  // namespace

void PoolThread::read_guard() {
    while (link_) {
        auto packet = recv_packet(link_.get());
        if (!packet) return;
        GuardPacket news;
        if (packet->bytes.size() != sizeof news) return guard_lost();
        std::copy_n(packet->bytes.data(), sizeof news, reinterpret_cast<char*>(&news));
        if (news.kind == GuardPacket::Kind::exited)
            exited(news.pid,
                   {true, news.number, static_cast<std::uint64_t>(news.peak_mib) * kMebibyte});
        if (news.kind == GuardPacket::Kind::started && news.pid < 0) {
            fork_server_refused_ = true;
            trouble(std::string("no fork server can be started (") + std::strerror(news.number) +
                        "): see ulimit -u, and pids.max of the cgroup",
                    false);
        } else if (news.kind == GuardPacket::Kind::started) {
            const std::lock_guard lock(pool_.mutex_);
            pool_.pids_.fork_server = news.pid;
        }
    }
}

// Whatever the guard watched over ends with it: nobody will report the ranks any more.
void PoolThread::guard_lost() {
    link_.reset();
    if (fork_server_refused_)  // it could not even make its second process, and has said why
        trouble(pool_.trouble(), true);
    else
        trouble("the guard process ended, and all ranks with it", true);
    all_lost();
}

void PoolThread::all_lost() {
    control_.reset();
    std::vector<ChildId> lost;
    for (const auto& [id, child] : children_) lost.push_back(id);
    for (const ChildId id : lost) died(id, {});
    no_fork_server();
}

void PoolThread::never_forked(const std::vector<ChildId>& ids) {
    for (const ChildId id : ids) died(id, {});
}

void PoolThread::exited(pid_t pid, const Exit& exit) {
    const auto found = by_pid_.find(pid);
    if (found != by_pid_.end()) {
        died(found->second, exit);
        return;
    }
    // Kept only while it can be a rank whose pid we are about to learn; else it is an orphan's end,
    // and its pid may come back as a rank's.
    if (forks_under_way_ > 0) early_exits_[pid] = exit;
}

void PoolThread::came_up(ChildId id, Child& child, const Hello& hello) {
    child.came_up = true;
    if (child.hello) child.hello->answer(id, hello.service.dump());
    const std::lock_guard lock(pool_.mutex_);
    pool_.starting_.erase(id);
}

void PoolThread::died(ChildId id, const Exit& exit) {
    const auto found = children_.find(id);
    if (found == children_.end()) return;
    Child& child = found->second;
    // All it sent and wrote lies in the socket and the pipes: take it before saying that it is
    // dead.
    if (child.state == Child::State::alive) read_socket(id, child);
    child.state = Child::State::dead;
    for (OutputPipe& pipe : child.pipes) pipe.drain();
    settle(id, child, Marks::ignore);
    RankOutcome outcome;
    outcome.status = exit.status;
    outcome.exit_known = exit.known;
    outcome.came_up = child.came_up;
    outcome.program = child.program;
    outcome.memory = memory_end(child, exit);
    const DeadChild dead{child.pid, outcome.status, outcome.exit_known, outcome.program,
                         outcome.memory};
    rank_ended(child, RankState::died, std::move(outcome), Clock::now());
    if (child.hello) child.hello->answer(id, std::nullopt);
    for (auto& [token, query] : child.queries) query->answer(id, std::nullopt);
    {
        const std::lock_guard lock(pool_.mutex_);
        pool_.pids_.children.erase(id);
        pool_.starting_.erase(id);
        const bool spare = std::erase(pool_.spares_, id) > 0;
        if (spare) refill_at_ = Clock::now() + kSparePause;
        if (!spare && !child.retired) pool_.dead_[id] = dead;
    }
    if (child.pid > 0) by_pid_.erase(child.pid);
    std::erase(ordered_, id);
    children_.erase(found);
    calls_to_drop_ = true;
}

// Each process that the system ended for want of memory explains one death, no more.
MemoryEnd PoolThread::memory_end(const Child& child, const Exit& exit) {
    MemoryEnd end{.verdict = OutOfMemory::no, .limit = 0, .peak = exit.peak};
    if (!exit.killed() || child.killed) return end;
    end.verdict = memory_.verdict(memory_seen_, memory_.count());
    end.limit = memory_.limit();
    if (end.verdict == OutOfMemory::yes) ++*memory_seen_;
    return end;
}

void PoolThread::retire(const std::vector<ChildId>& ids) {
    for (const ChildId id : ids) {
        const auto found = children_.find(id);
        if (found == children_.end()) {
            const std::lock_guard lock(pool_.mutex_);
            pool_.dead_.erase(id);
            continue;
        }
        found->second.retired = true;
        if (found->second.state == Child::State::ordered) {
            never_forked({id});
            continue;
        }
        send(id, Quit{});
        if (!found->second.retire_by) found->second.retire_by = Clock::now() + kRetireGrace;
    }
}

void PoolThread::kill(const std::vector<ChildId>& ids) {
    for (const ChildId id : ids) {
        const auto found = children_.find(id);
        if (found == children_.end()) continue;
        if (found->second.state == Child::State::alive)
            kill_tree(found->second);
        else
            never_forked({id});
    }
}

void PoolThread::kill_tree(Child& child) {
    child.killed = true;
    tell_guard({GuardPacket::Kind::kill_tree, child.pid, 0});
}

void PoolThread::tell_guard(GuardPacket packet, int fd) {
    if (!link_) return;
    std::vector<int> fds;
    if (fd >= 0) fds.push_back(fd);
    const std::string_view bytes(reinterpret_cast<const char*>(&packet), sizeof packet);
    if (send_packet(link_.get(), bytes, fds, Wait::no) == Sent::full)
        trouble("the guard process does not answer", true);
}

void PoolThread::trouble(const std::string& what, bool broken) {
    const std::lock_guard lock(pool_.mutex_);
    pool_.trouble_ = what;
    pool_.broken_ = pool_.broken_ || broken;
    if (broken) pool_.output_ready_.notify();
}

}  // namespace sgpu
