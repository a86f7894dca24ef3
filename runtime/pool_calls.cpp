// pool_calls.cpp: calls, their output and their ends, in the pool's thread.
#include <algorithm>

#include "runtime/pool_thread.h"

namespace sgpu {
namespace {

constexpr std::chrono::milliseconds kViewDelay{50};  // between a change and the view that has it

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

std::string as_json(const Stack& stack) {
    const nlohmann::json all{
        {"text", stack.text}, {"main", stack.main}, {"collectives", stack.collectives}};
    return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void PoolThread::begin_call(CallRequest request, const std::shared_ptr<CallTicket>& ticket) {
    const auto now = Clock::now();
    const CallId id = ticket->id();
    const auto [at, made] = calls_.try_emplace(id, std::move(request), ticket, now);
    RunningCall& call = at->second;
    std::set<int> members;
    for (std::size_t i = 0; i < call.request.members.size(); ++i) {
        const auto [rank, child_id] = call.request.members[i];
        members.insert(rank);
        call.outcomes[i].rank = rank;
        call.outcomes[i].child = child_id;
        call.logs.emplace_back(pool_.log_path(id, rank));
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

void PoolThread::text(Child& child, Stream stream, const std::string& bytes) {
    RunningCall* call = call_of(child);
    if (!call) return;
    call->logs[child.index].write(bytes);
    call->mux.add(call->request.members[child.index].rank, stream, bytes, Clock::now());
    if (!call->view_due) call->view_due = Clock::now() + kViewDelay;
}

void PoolThread::message(ChildId id, Child& child, Message message) {
    RunningCall* call = call_of(child);
    if (const auto* hello = std::get_if<Hello>(&message.body)) {
        if (child.hello && hello->key == child.key) child.hello->answer(id, hello->service.dump());
    } else if (const auto* done = std::get_if<Done>(&message.body)) {
        if (!call || done->call != child.call) return;
        RankOutcome outcome;
        outcome.frames = std::move(message.frames);
        outcome.buffer = std::move(message.buffer);
        // steady_clock counts as CLOCK_MONOTONIC does, which the rank has read.
        const Clock::time_point raised{std::chrono::nanoseconds(done->raised_ns)};
        rank_ended(child, done->ok ? RankState::returned : RankState::raised, std::move(outcome),
                   done->raised_ns > 0 ? raised : Clock::now());
    } else if (auto* display = std::get_if<Display>(&message.body)) {
        if (!call) return;
        const int rank = call->request.members[child.index].rank;
        show(child.call, *call, call->mux.flush_rank(rank));
        OutputEvent event{child.call, rank, std::move(display->type), "",
                          std::move(message.buffer)};
        if (!message.frames.empty()) event.content = std::move(message.frames[0]);
        const std::lock_guard lock(pool_.mutex_);
        pool_.output_.push_back(std::move(event));
        pool_.output_ready_.notify();
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

void PoolThread::show(CallId id, RunningCall& call, std::vector<Chunk> chunks) {
    if (chunks.empty()) return;
    (void)call;
    const std::lock_guard lock(pool_.mutex_);
    for (Chunk& chunk : chunks)
        pool_.output_.push_back({id, -1, chunk.stream == Stream::out ? "stdout" : "stderr",
                                 std::move(chunk.text), UniqueFd()});
    pool_.output_ready_.notify();
}

void PoolThread::carry_out(RunningCall& call, const std::vector<Order>& orders) {
    for (const Order& order : orders) {
        const ChildId id = call.request.members[order.index].child;
        const CallId name = call.ticket->id();
        const char* reason = reason_of(call.state.cause());
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
        call.view_due = Clock::now();
    }
}

void PoolThread::finish_if_over(CallId id, RunningCall& call) {
    if (call.reported || !call.state.finished()) return;
    show(id, call, call.mux.flush());
    for (std::size_t i = 0; i < call.outcomes.size(); ++i) {
        const Call::Rank& rank = call.state.ranks()[i];
        call.outcomes[i].state = rank.state;
        call.outcomes[i].consequence = rank.consequence;
        call.outcomes[i].seconds =
            std::chrono::duration<double>(rank.at - call.state.started()).count();
    }
    update_view(call);
    call.reported = true;
    call.ticket->finish(std::move(call.outcomes));
}

void PoolThread::update_view(RunningCall& call) {
    call.view_due.reset();
    CallView view;
    for (const auto& rank : call.state.ranks()) view.states.push_back(rank.state);
    view.live = call.mux.live();
    view.cause = call.state.cause();
    view.pressure = call.state.pressure();
    view.stacks = call.stacks;
    call.ticket->set_view(std::move(view));
}

// A call is kept for late lines while one of its ranks has not been given another.
void PoolThread::drop_old_calls() {
    for (auto it = calls_.begin(); it != calls_.end();) {
        const auto owns = [&](const auto& entry) { return entry.second.call == it->first; };
        const bool old =
            it->second.reported && std::none_of(children_.begin(), children_.end(), owns);
        if (old) show(it->first, it->second, it->second.mux.flush());
        it = old ? calls_.erase(it) : std::next(it);
    }
}

}  // namespace sgpu
