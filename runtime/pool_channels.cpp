// pool_channels.cpp: what goes to a child and what comes from it, put into one order.
#include "runtime/pool_thread.h"

namespace sgpu {
namespace {

constexpr std::size_t kMaxUnsent = 256;  // packets that may wait for a rank that does not read

std::uint32_t mark_of(const Message& message) {
    if (const auto* done = std::get_if<Done>(&message.body)) return done->mark;
    if (const auto* display = std::get_if<Display>(&message.body)) return display->mark;
    return 0;
}

}  // namespace

void PoolThread::send(ChildId id, const Body& body, const std::vector<std::string>& frames,
                      int buffer) {
    const auto found = children_.find(id);
    if (found == children_.end()) return;
    Child& child = found->second;
    std::string bytes = encode(body, frames);
    std::vector<int> fds;
    if (buffer >= 0) fds.push_back(buffer);
    if (child.unsent.empty() &&
        send_packet(child.socket.get(), bytes, fds, Wait::no) != Sent::full)
        return;
    if (child.unsent.size() >= kMaxUnsent) return;
    child.unsent.push_back({std::move(bytes), UniqueFd(buffer >= 0 ? ::dup(buffer) : -1)});
}

void PoolThread::send_unsent(Child& child) {
    while (!child.unsent.empty()) {
        const auto& first = child.unsent.front();
        std::vector<int> fds;
        if (first.buffer) fds.push_back(first.buffer.get());
        if (send_packet(child.socket.get(), first.bytes, fds, Wait::no) == Sent::full) return;
        child.unsent.pop_front();
    }
}

void PoolThread::read_socket(ChildId id, Child& child) {
    while (child.socket) {
        auto packet = recv_packet(child.socket.get());
        if (!packet) return;
        auto decoded = packet->bytes.empty() ? Result<Message>(Error{}) : decode(packet->bytes);
        if (!decoded) {
            // It is dying, or it closed what it must not close, or it talks rubbish: in each case it
            // can give no answer any more.
            child.socket.reset();
            child.unsent.clear();
            if (child.state == Child::State::alive)
                tell_guard({GuardPacket::Kind::kill_tree, child.pid, 0});
            return;
        }
        Message& got = decoded.value();
        if (!packet->fds.empty()) got.buffer = std::move(packet->fds[0]);
        if (mark_of(got) == 0) {
            message(id, child, std::move(got));
            continue;
        }
        child.marked.push_back(std::move(got));
        read_pipes(id, child);  // delivers it in its place
    }
}

void PoolThread::read_pipes(ChildId id, Child& child) {
    for (OutputPipe& pipe : child.pipes) pipe.read_some();
    settle(id, child);
}

// Puts text, and messages at their marks, into the one order in which the rank made them.
void PoolThread::settle(ChildId id, Child& child) {
    const bool dead = child.state == Child::State::dead;
    auto& [out, err] = child.pipes;
    for (;;) {
        for (OutputPipe* pipe : {&out, &err}) {
            while (!pipe->pieces.empty() && (pipe->pieces.front().mark == 0 || dead)) {
                if (pipe->pieces.front().mark == 0)
                    text(child, pipe == &out ? Stream::out : Stream::err,
                         std::move(pipe->pieces.front().text));
                pipe->pieces.pop_front();
            }
        }
        const bool has_message = !child.marked.empty();
        if (dead) {
            if (!has_message) return;
        } else {
            if (out.pieces.empty() || err.pieces.empty()) return;
            const auto mark = out.pieces.front().mark;
            const bool message_follows = mark % 2 == 0;
            if (message_follows && (!has_message || mark_of(child.marked.front()) != mark)) return;
            out.pieces.pop_front();
            err.pieces.pop_front();
            if (!message_follows) continue;
        }
        Message next = std::move(child.marked.front());
        child.marked.pop_front();
        message(id, child, std::move(next));
    }
}

void PoolThread::stacks(const std::vector<ChildId>& ids, std::shared_ptr<QueryTicket> ticket) {
    for (const ChildId id : ids) {
        const auto found = children_.find(id);
        if (found == children_.end() || found->second.state != Child::State::alive) {
            ticket->answer(id, std::nullopt);
            continue;
        }
        const auto token = next_token_++;
        found->second.queries[token] = ticket;
        send(id, Dump{token});
    }
}

}  // namespace sgpu
