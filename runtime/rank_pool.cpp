// rank_pool.cpp: what callers use. What runs in the pool's thread is in pool_*.cpp.
#include "runtime/rank_pool.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <system_error>

#include "runtime/guard_link.h"
#include "runtime/guard_process.h"
#include "runtime/pool_thread.h"
#include "runtime/process_tree.h"

namespace sgpu {
namespace {

constexpr int kGuardEndMs = 5000;  // what the guard may take to end everything, lingering included

// A call that no pool takes any more.
void finish_as_lost(const CallRequest& request, CallTicket& ticket) {
    CallView view;
    view.cause = EndCause::failure;
    std::vector<RankOutcome> outcomes;
    for (const auto [rank, child] : request.members) {
        view.states.push_back(RankState::died);
        RankOutcome& lost = outcomes.emplace_back();
        lost.rank = rank;
        lost.child = child;
        lost.state = RankState::died;
    }
    ticket.set_view(std::move(view));
    ticket.finish(std::move(outcomes));
}

}  // namespace

Result<std::unique_ptr<RankPool>> RankPool::start(const PoolOptions& options) {
    std::unique_ptr<RankPool> pool(new RankPool);
    if (pool->posted_ready_.fd() < 0 || pool->output_ready_.fd() < 0)
        return os_error("descriptors of the pool");
    pool->notebook_ = ::getpid();
    auto folder = make_private_folder();
    if (!folder) return folder.error();
    pool->folder_ = folder.value();
    auto link = packet_pair();
    if (!link) return link.error();
    auto& [ours, theirs] = link.value();
    const auto guard = start_guard({options.guard, options.fork_server, pool->folder_}, theirs);
    if (!guard) return guard.error();
    pool->guard_ = pool->pids_.guard = guard.value();
    pool->guard_alive_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pool->guard_, 0)));
    pool->core_ = std::make_unique<PoolThread>(*pool, std::move(ours));

    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);  // signals of the notebook are its main thread's
    std::optional<Error> error;
    try {
        pool->thread_ = std::thread([core = pool->core_.get()] { core->run(); });
    } catch (const std::system_error& refused) {
        error = Error{Errc::os_failure, "thread of the pool: " + std::string(refused.what()),
                      refused.code().value()};
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (error) return *error;
    return pool;
}

RankPool::~RankPool() {
    if (notebook_ != ::getpid()) {
        // The thread is not here, and it may have been in the middle of anything when we were
        // forked.
        if (thread_.joinable()) thread_.detach();
        (void)core_.release();
        return;
    }
    end();
}

void RankPool::end() {
    UniqueFd link;
    if (thread_.joinable()) {
        post([this] { core_->quit(); });
        thread_.join();
        link = core_->take_link();
    }
    core_.reset();
    if (guard_ > 0) end_guard(link);
    guard_ = 0;
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

// Waits for both halves of the guard and does what they have left undone.
void RankPool::end_guard(const UniqueFd& link) const {
    const auto ended = [this] {
        pollfd warden{guard_alive_.get(), POLLIN, 0};
        return !guard_alive_ || ::poll(&warden, 1, kGuardEndMs) != 0;
    };
    if (!ended()) {
        // A keeper that hangs is killed, so that the warden takes its place.
        for (const Process& p : descendants(guard_))
            if (p.parent == guard_) ::kill(p.pid, SIGKILL);
        if (!ended()) ::syscall(SYS_pidfd_send_signal, guard_alive_.get(), SIGKILL, nullptr, 0);
    }
    int status = 0;
    const bool reaped = ::waitpid(guard_, &status, 0) == guard_;
    if (reaped && WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    // The warden was killed: the keeper, whose end shows at the link, ends everything. What it
    // cannot find, since it was killed too, has our mark.
    pollfd keeper{link.get(), 0, 0};
    if (link) ::poll(&keeper, 1, kGuardEndMs);
    kill_marked(pool_mark(folder_));
}

bool RankPool::post(std::function<void()> work) {
    {
        const std::lock_guard lock(mutex_);
        if (ended_) return false;
        posted_.push_back(std::move(work));
    }
    posted_ready_.notify();
    return true;
}

void RankPool::set_spares(int count) {
    post([this, count] { core_->set_spares(count); });
}

std::vector<ChildId> RankPool::take(int count, Imports needed) {
    std::vector<ChildId> ids;
    std::vector<ChildId> missing;
    std::vector<ChildId> unfit;
    {
        const std::lock_guard lock(mutex_);
        unfit = unfit_spares();
        while (static_cast<int>(ids.size()) < count) {
            if (spares_.empty()) {
                missing.push_back(next_child_);
                ids.push_back(next_child_++);
            } else {
                ids.push_back(warmth_.take(spares_, static_cast<int>(ids.size())));
            }
        }
    }
    if (!unfit.empty()) retire(std::move(unfit));
    if (!missing.empty()) post([=, this] { core_->order(missing, needed); });
    return ids;
}

// Takes out of the spares those that still come up under another limit of processes than is in
// force now: they may fail of it.
std::vector<ChildId> RankPool::unfit_spares() {
    std::vector<ChildId> unfit;
    for (const auto& [id, limit] : starting_)
        if (limit != process_limit() && std::erase(spares_, id) > 0) unfit.push_back(id);
    return unfit;
}

void RankPool::warm(int devices, const std::optional<std::string>& visible,
                    std::chrono::seconds idle) {
    bool other = false;
    {
        const std::lock_guard lock(mutex_);
        other = warmth_.active() && warmth_.visible() != visible;
    }
    if (other) cool();
    std::vector<std::pair<ChildId, int>> orders;
    {
        // Decided here and not in the pool's thread: who takes ranks next finds the right ones.
        const std::lock_guard lock(mutex_);
        warmth_.begin(devices, visible);
        orders = warmth_.assign(spares_);
    }
    post([=, this, until = Clock::now() + idle] { core_->warm(orders, visible, until); });
}

void RankPool::cool() {
    std::vector<ChildId> warm = warm_spares();
    {
        const std::lock_guard lock(mutex_);
        for (const ChildId id : warm) std::erase(spares_, id);
        warmth_.end();
    }
    retire(std::move(warm));
}

std::vector<ChildId> RankPool::warm_spares() const {
    const std::lock_guard lock(mutex_);
    std::vector<ChildId> warm;
    for (const ChildId id : spares_)
        if (warmth_.is_warm(id)) warm.push_back(id);
    return warm;
}

void RankPool::retire(std::vector<ChildId> children) {
    post([this, ids = std::move(children)] { core_->retire(ids); });
}

void RankPool::kill(std::vector<ChildId> children) {
    post([this, ids = std::move(children)] { core_->kill(ids); });
}

std::shared_ptr<CallTicket> RankPool::begin_call(CallRequest request) {
    CallId id = 0;
    {
        const std::lock_guard lock(mutex_);
        id = next_call_++;
    }
    auto ticket = std::make_shared<CallTicket>(id);
    // std::function wants its content copyable; the request is not.
    auto carried = std::make_shared<CallRequest>(std::move(request));
    if (!post([this, carried, ticket] { core_->begin_call(std::move(*carried), ticket); }))
        finish_as_lost(*carried, *ticket);
    return ticket;
}

void RankPool::stop(CallId call) {
    post([this, call] { core_->stop(call); });
}

void RankPool::cut_short(CallId call) {
    post([this, call] { core_->cut_short(call); });
}

std::pair<ChildId, std::shared_ptr<QueryTicket>> RankPool::start_service(
    const std::string& entry, const std::string& config, std::chrono::milliseconds linger,
    Imports needed) {
    ChildId id = 0;
    {
        const std::lock_guard lock(mutex_);
        id = next_child_++;
    }
    auto ticket = std::make_shared<QueryTicket>(1);
    if (!post([=, this] { core_->start_service(id, entry, config, linger, needed, ticket); }))
        ticket->answer(id, std::nullopt);
    return {id, ticket};
}

std::shared_ptr<QueryTicket> RankPool::whereabouts(const std::vector<ChildId>& children, Ask ask) {
    const std::set<ChildId> asked(children.begin(), children.end());
    auto ticket = std::make_shared<QueryTicket>(asked.size());
    const bool taken = post([this, children, ask, ticket] {
        core_->whereabouts(children, ask == Ask::stack_too, ticket);
    });
    if (!taken)
        for (const ChildId id : asked) ticket->answer(id, std::nullopt);
    return ticket;
}

std::shared_ptr<QueryTicket> RankPool::fork_server_ready() {
    auto ticket = std::make_shared<QueryTicket>(kStages);
    if (!post([this, ticket] { core_->fork_server_ready(ticket); }))
        for (ChildId stage = 0; stage < kStages; ++stage) ticket->answer(stage, std::nullopt);
    return ticket;
}

std::vector<OutputEvent> RankPool::take_output() {
    const std::lock_guard lock(mutex_);
    output_ready_.take();
    return output_.take();
}

PoolPids RankPool::pids() const {
    const std::lock_guard lock(mutex_);
    return pids_;
}

std::map<ChildId, DeadChild> RankPool::dead_children() const {
    const std::lock_guard lock(mutex_);
    return dead_;
}

std::string RankPool::log_path(CallId call, int rank) const {
    return CallLogs(folder_ + "/logs").path(call, rank);
}

std::map<CallId, std::map<int, LogLoss>> RankPool::log_losses() const {
    const std::lock_guard lock(mutex_);
    return log_losses_;
}

std::string RankPool::trouble() const {
    const std::lock_guard lock(mutex_);
    return trouble_;
}

bool RankPool::broken() const {
    const std::lock_guard lock(mutex_);
    return broken_;
}

}  // namespace sgpu
