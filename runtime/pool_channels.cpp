// pool_channels.cpp: what goes to a child and what comes from it, put into one order.
#include <fcntl.h>

#include <algorithm>
#include <filesystem>

#include "runtime/pool_thread.h"

namespace sgpu {
namespace {

constexpr std::size_t kMaxUnsent = 256;  // packets that may wait for a rank that does not read
constexpr std::chrono::seconds kLastBreath{1};  // for a rank without its channel to end
constexpr std::chrono::seconds kMarkHold{1};    // for the other half of a mark, or its message

std::uint32_t mark_of(const Message& message) {
    if (const auto* done = std::get_if<Done>(&message.body)) return done->mark;
    if (const auto* display = std::get_if<Display>(&message.body)) return display->mark;
    return 0;
}

// The file that the process runs; "" if it is ending: then it has given up its memory before it
// closes anything. An exec closes the channel when the new program is there.
std::string program_of(pid_t pid) {
    std::error_code ignored;
    const auto exe = "/proc/" + std::to_string(pid) + "/exe";
    return pid > 0 ? std::filesystem::read_symlink(exe, ignored).string() : "";
}

bool takes_a_place(const Message& message) {
    return std::holds_alternative<Done>(message.body) ||
           std::holds_alternative<Display>(message.body);
}

}  // namespace

// False if the packet will never get there.
bool PoolThread::send(ChildId id, const Body& body, const std::vector<std::string>& frames,
                      int buffer) {
    const auto found = children_.find(id);
    if (found == children_.end()) return false;
    Child& child = found->second;
    std::string bytes = encode(body, frames);
    std::vector<int> fds;
    if (buffer >= 0) fds.push_back(buffer);
    if (child.unsent.empty()) {
        const Sent sent = send_packet(child.socket.get(), bytes, fds, Wait::no);
        if (sent != Sent::full) return sent == Sent::yes;
    }
    if (child.unsent.size() >= kMaxUnsent) return false;
    child.unsent.push_back(
        {std::move(bytes), UniqueFd(buffer >= 0 ? ::fcntl(buffer, F_DUPFD_CLOEXEC, 0) : -1)});
    return true;
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
        if (packet->fds_lost)
            trouble("the notebook is out of file descriptors (ulimit -n): a result is lost", false);
        const bool readable = !packet->bytes.empty() && !packet->fds_lost;
        auto decoded = readable ? decode(packet->bytes) : Result<Message>(Error{});
        if (!decoded) {
            // It is dying, or it closed what it must not close, or it talks rubbish: in each case
            // it can give no answer any more. How it ends by itself says which.
            child.socket.reset();
            child.unsent.clear();
            if (packet->bytes.empty()) child.program = program_of(child.pid);
            if (child.state == Child::State::alive) child.silent_until = Clock::now() + kLastBreath;
            return;
        }
        Message& got = decoded.value();
        if (!packet->fds.empty()) got.buffer = std::move(packet->fds[0]);
        if (!takes_a_place(got)) {
            message(id, child, std::move(got));
            continue;
        }
        const bool has_mark = mark_of(got) != 0;
        child.marked.push_back(std::move(got));
        for (OutputPipe& pipe : child.pipes) pipe.read_some();
        settle(id, child, has_mark ? Marks::wait : Marks::ignore);  // delivers it in its place
    }
}

void PoolThread::read_pipes(ChildId id, Child& child) {
    for (OutputPipe& pipe : child.pipes) pipe.read_some();
    settle(id, child);
}

// Puts text, and messages at their marks, into the one order in which the rank made them.
void PoolThread::settle(ChildId id, Child& child, Marks marks) {
    auto& [out, err] = child.pipes;
    const auto passed_before = child.passed;
    do {
        while (marks == Marks::wait && !child.marked.empty() &&
               mark_of(child.marked.front()) <= child.passed)
            deliver_first(id, child);
        for (OutputPipe* pipe : {&out, &err}) {
            while (!pipe->pieces.empty() &&
                   (pipe->pieces.front().mark == 0 || marks == Marks::ignore)) {
                OutputPipe::Piece piece = std::move(pipe->pieces.front());
                pipe->pieces.pop_front();
                child.passed = std::max(child.passed, piece.mark);
                if (piece.mark == 0)
                    text(id, child, pipe == &out ? Stream::out : Stream::err, piece);
            }
        }
    } while (pass_mark(child));
    while (marks == Marks::ignore && !child.marked.empty()) deliver_first(id, child);

    const bool holds = !out.pieces.empty() || !err.pieces.empty() || !child.marked.empty();
    if (!holds)
        child.held_until.reset();
    else if (!child.held_until || child.passed != passed_before)
        child.held_until = Clock::now() + kMarkHold;
}

// Takes the lowest mark that both pipes have come to. A mark that only one of them has, though the
// other is at a higher one, has lost its other half.
bool PoolThread::pass_mark(Child& child) {
    auto& [out, err] = child.pipes;
    if (out.pieces.empty() || err.pieces.empty()) return false;
    const auto mark = std::min(out.pieces.front().mark, err.pieces.front().mark);
    const bool message_follows = mark % 2 == 0;
    if (message_follows && child.marked.empty()) return false;
    for (OutputPipe* pipe : {&out, &err})
        if (pipe->pieces.front().mark == mark) pipe->pieces.pop_front();
    child.passed = std::max(child.passed, mark);
    return true;
}

void PoolThread::deliver_first(ChildId id, Child& child) {
    Message first = std::move(child.marked.front());
    child.marked.pop_front();
    message(id, child, std::move(first));
}

void PoolThread::whereabouts(const std::vector<ChildId>& ids, bool stack,
                             const std::shared_ptr<QueryTicket>& ticket) {
    for (const ChildId id : ids) {
        const auto found = children_.find(id);
        if (found == children_.end() || found->second.state != Child::State::alive) {
            ticket->answer(id, std::nullopt);
            continue;
        }
        const auto token = next_token_++;
        found->second.queries[token] = ticket;
        send(id, Dump{token, stack});
    }
}

}  // namespace sgpu
