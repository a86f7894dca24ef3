// pool_calls.cpp: calls, their output and their ends, in the pool's thread.
#include <sys/stat.h>

#include <algorithm>

#include "runtime/pool_thread.h"

namespace sgpu {
namespace {

constexpr std::chrono::milliseconds kViewDelay{50};  // between a change and the view that has it
constexpr off_t kLargestDisplay = 64LL << 20;        // bytes
constexpr std::string_view kTooLarge = "(a display of more than 64 MB is left out)\n";
constexpr std::size_t kNewestUnshown = 5;  // lines of a flood that a status line has
constexpr std::size_t kKeptCalls = 50;     // for late lines of ranks that live on

const char* reason_of(EndCause cause) {
    switch (cause) {
        case EndCause::deadline:
            return "deadline";
        case EndCause::failure:
            return "peer";
        default:
            return "stop";
    }
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

std::string as_json(const Stack& stack) {
    const nlohmann::json all{
        {"text", stack.text}, {"main", stack.main}, {"collectives", stack.collectives}};
    return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The JSON of a display; absent if it is larger than any front end could show.
std::optional<std::string> content_of(Message& message) {
    if (!message.buffer) return message.frames.empty() ? "{}" : std::move(message.frames[0]);
    struct stat info {};
    if (::fstat(message.buffer.get(), &info) != 0 || info.st_size > kLargestDisplay) return {};
    std::string content(static_cast<std::size_t>(info.st_size), '\0');
    const ssize_t got = ::pread(message.buffer.get(), content.data(), content.size(), 0);
    if (got != static_cast<ssize_t>(content.size())) return {};
    return content;
}

}  // namespace

void PoolThread::begin_call(CallRequest request, const std::shared_ptr<CallTicket>& ticket) {
    const auto now = Clock::now();
    const CallId id = ticket->id();
    if (!call_runs()) memory_seen_ = memory_.count();
    const auto [at, made] = calls_.try_emplace(id, std::move(request), ticket, now);
    RunningCall& call = at->second;
    std::set<int> members;
    const std::uint64_t log_room = logs_.begin(id, static_cast<int>(call.request.members.size()));
    for (std::size_t i = 0; i < call.request.members.size(); ++i) {
        const auto [rank, child_id] = call.request.members[i];
        members.insert(rank);
        call.outcomes[i].rank = rank;
        call.outcomes[i].child = child_id;
        call.logs.emplace_back(logs_.path(id, rank), log_room);
        const auto found = children_.find(child_id);
        if (found == children_.end()) {
            call.state.ended(i, RankState::died, now);
            call.mux.rank_ended(rank);
            continue;
        }
        found->second.call = id;
        found->second.index = i;
        const Execute execute{id, rank, call.request.world, call.request.mode};
        if (!send(child_id, execute, call.request.frames, call.request.buffer.get()))
            kill({child_id});
    }
    // Ranks that take no part have nothing to say that a line could wait for.
    for (int rank = 0; rank < call.request.world; ++rank)
        if (!members.contains(rank)) call.mux.rank_ended(rank);
    call.request.frames.clear();
    call.request.buffer.reset();
    call.view_due = now;
    calls_to_drop_ = true;
}

bool PoolThread::call_runs() const {
    return std::any_of(calls_.begin(), calls_.end(),
                       [](const auto& entry) { return !entry.second.reported; });
}

void PoolThread::stop(CallId id) {
    const auto found = calls_.find(id);
    if (found != calls_.end()) found->second.state.stop(Clock::now());
}

void PoolThread::cut_short(CallId id) {
    const auto found = calls_.find(id);
    if (found != calls_.end()) found->second.state.cut_short(Clock::now());
}

RunningCall* PoolThread::call_of(const Child& child) {
    const auto found = calls_.find(child.call);
    return found == calls_.end() ? nullptr : &found->second;
}

// Text belongs to the last call of the rank unless its thread was started in an earlier one.
void PoolThread::text(ChildId id, const Child& child, Stream stream,
                      const OutputPipe::Piece& piece) {
    auto found = calls_.find(child.call);
    std::size_t index = child.index;
    if (const auto earlier = calls_.find(piece.owner); earlier != calls_.end()) {
        const auto& members = earlier->second.request.members;
        const auto same = [id](const CallRequest::Member& m) { return m.child == id; };
        const auto member = std::find_if(members.begin(), members.end(), same);
        if (member != members.end()) {
            found = earlier;
            index = static_cast<std::size_t>(member - members.begin());
        }
    }
    if (found == calls_.end()) return;
    RunningCall& call = found->second;
    call.logs[index].write(piece.text);
    call.mux.add(call.request.members[index].rank, stream, piece.text, Clock::now());
    call.late = call.reported;
    if (!call.view_due) call.view_due = Clock::now() + kViewDelay;
}

// What comes after a call's end is shown as what came before it.
void PoolThread::show_late(CallId id, RunningCall& call, Clock::time_point now) {
    show(id, call.mux.take(now));
    call.late = call.mux.next_due().has_value();
    if (call.late) return;
    for (RankLog& log : call.logs) log.rest();
    note_losses(id, call);
}

void PoolThread::note_losses(CallId id, const RunningCall& call) {
    const std::lock_guard lock(pool_.mutex_);
    for (std::size_t i = 0; i < call.logs.size(); ++i)
        if (const LogLoss loss = call.logs[i].loss(); loss.any())
            pool_.log_losses_[id][call.request.members[i].rank] = loss;
    while (pool_.log_losses_.size() > CallLogs::kKeptCalls)
        pool_.log_losses_.erase(pool_.log_losses_.begin());
}

void PoolThread::message(ChildId id, Child& child, Message message) {
    RunningCall* call = call_of(child);
    const auto now = Clock::now();
    if (const auto* hello = std::get_if<Hello>(&message.body)) {
        if (hello->key == child.key) came_up(id, child, *hello);
    } else if (const auto* done = std::get_if<Done>(&message.body)) {
        if (!call || done->call != child.call) return;
        RankOutcome outcome;
        // That of an earlier call, if user code of this one was not come to.
        const Clock::time_point began{std::chrono::nanoseconds(done->began_ns)};
        if (began > call->state.started())
            outcome.began = seconds_between(call->state.started(), began);
        outcome.startup = done->startup;
        outcome.frames = std::move(message.frames);
        outcome.buffer = std::move(message.buffer);
        // steady_clock counts as CLOCK_MONOTONIC does, which the rank has read.
        const Clock::time_point raised{std::chrono::nanoseconds(done->raised_ns)};
        rank_ended(child, done->ok ? RankState::returned : RankState::raised, std::move(outcome),
                   done->raised_ns > 0 ? raised : Clock::now());
    } else if (auto* display = std::get_if<Display>(&message.body)) {
        if (!call) return;
        const int rank = call->request.members[child.index].rank;
        auto content = content_of(message);
        if (content)
            call->mux.add_display(rank, std::move(display->type), std::move(*content), now);
        else
            call->mux.add(rank, Stream::err, kTooLarge, now);
        call->late = call->reported;
    } else if (auto* stack = std::get_if<Stack>(&message.body)) {
        if (const auto query = child.queries.extract(stack->token)) {
            query.mapped()->answer(id, as_json(*stack));
        } else if (call) {
            call->stacks[call->request.members[child.index].rank] = as_json(*stack);
            call->view_due = Clock::now();
        }
    }
}

void PoolThread::rank_ended(Child& child, RankState how, RankOutcome outcome,
                            Clock::time_point at) {
    RunningCall* call = call_of(child);
    if (!call || call->state.ranks()[child.index].state != RankState::running) return;
    const auto now = Clock::now();
    RankOutcome& kept = call->outcomes[child.index];
    outcome.rank = kept.rank;
    outcome.child = kept.child;
    outcome.pid = child.pid;
    kept = std::move(outcome);
    call->state.ended(child.index, how, now, at);
    call->mux.rank_ended(kept.rank);
    if (!call->view_due) call->view_due = now + kViewDelay;
}

void PoolThread::show(CallId id, std::vector<Chunk> chunks) {
    if (chunks.empty()) return;
    const std::lock_guard lock(pool_.mutex_);
    for (Chunk& chunk : chunks) {
        if (chunk.type.empty())
            pool_.output_.add_text(id, chunk.stream, std::move(chunk.text));
        else
            pool_.output_.add_display(
                {id, chunk.ranks, std::move(chunk.type), std::move(chunk.text)});
    }
    pool_.output_ready_.notify();
}

void PoolThread::carry_out(RunningCall& call, const std::vector<Order>& orders) {
    for (const Order& order : orders) {
        const ChildId id = call.request.members[order.index].child;
        const CallId name = call.ticket->id();
        const char* reason = reason_of(call.state.cause());
        call.view_due = Clock::now();
        const auto child = children_.find(id);
        if (child != children_.end() && child->second.state == Child::State::ordered &&
            order.kind != Order::Kind::dump) {
            never_forked({id});  // it has nothing to clean up, and shall not begin
            continue;
        }
        switch (order.kind) {
            case Order::Kind::interrupt:
                send(id, Interrupt{name, reason, "no"});
                break;
            case Order::Kind::cut_if_stuck:
                send(id, Interrupt{name, reason, "stuck"});
                break;
            case Order::Kind::cut:
                send(id, Interrupt{name, reason, "always"});
                break;
            case Order::Kind::dump:
                send(id, Dump{next_token_++, true});
                break;
            case Order::Kind::kill:
                kill({id});
                break;
        }
    }
}

void PoolThread::finish_if_over(CallId id, RunningCall& call) {
    if (call.reported || !call.state.finished()) return;
    show(id, call.mux.flush());
    std::uint64_t logged = 0;
    for (RankLog& log : call.logs) {
        logged += log.size();
        log.rest();
    }
    logs_.set_size(id, logged);
    note_losses(id, call);
    const bool failed = call.state.cause() == EndCause::failure;
    const auto memory = failed ? memory_.verdict(memory_seen_, memory_.count()) : OutOfMemory::no;
    for (std::size_t i = 0; i < call.outcomes.size(); ++i) {
        const Call::Rank& rank = call.state.ranks()[i];
        call.outcomes[i].state = rank.state;
        call.outcomes[i].consequence = rank.consequence;
        if (rank.state == RankState::raised && memory == OutOfMemory::yes)
            call.outcomes[i].memory = {.verdict = memory, .limit = memory_.limit(), .peak = 0};
        call.outcomes[i].seconds = seconds_between(call.state.started(), rank.at);
    }
    update_view(call);
    call.reported = true;
    calls_to_drop_ = true;
    call.ticket->finish(std::move(call.outcomes));
}

void PoolThread::update_view(RunningCall& call) {
    call.view_due.reset();
    CallView view;
    for (const auto& rank : call.state.ranks()) view.states.push_back(rank.state);
    view.live = call.mux.live();
    view.unshown = call.mux.unshown(kNewestUnshown);
    view.cause = call.state.cause();
    view.pressure = call.state.pressure();
    view.stacks = call.stacks;
    call.ticket->set_view(std::move(view));
}

// The last calls are kept for late lines while one of their ranks lives.
void PoolThread::drop_old_calls() {
    if (!std::exchange(calls_to_drop_, false)) return;
    auto too_many = calls_.size() - std::min(calls_.size(), kKeptCalls);
    for (auto it = calls_.begin(); it != calls_.end();) {
        const auto& members = it->second.request.members;
        const bool can_print =
            std::any_of(members.begin(), members.end(), [this](const CallRequest::Member& m) {
                return children_.find(m.child) != children_.end();
            });
        const bool old = it->second.reported && (!can_print || too_many > 0);
        too_many -= std::min<std::size_t>(too_many, 1);
        if (old) show(it->first, it->second.mux.flush());
        it = old ? calls_.erase(it) : std::next(it);
    }
}

}  // namespace sgpu
