#include "runtime/rank_output.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <new>

#include "runtime/output_pipe.h"

namespace sgpu {
namespace {

constexpr int kPrivateFds = 100;   // above what user code is likely to name
constexpr int kRoomLimitMs = 100;  // for one wait for room in a pipe
constexpr std::chrono::seconds kMarkLimit{10};
constexpr int kMostParts = 64;  // of one writev

RankOutput* the_output = nullptr;

std::size_t index_of(Stream stream) {
    return static_cast<std::size_t>(stream);
}

// The pipe behind `fd` under a description of its own, for O_NONBLOCK belongs to the description
// and others write through theirs.
UniqueFd own_description(int fd) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    UniqueFd opened(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    const int from = opened ? opened.get() : fd;
    return UniqueFd(::fcntl(from, F_DUPFD_CLOEXEC, kPrivateFds));
}

std::pair<std::uint64_t, std::uint64_t> inode_of(int fd) {
    struct stat info {};
    if (::fstat(fd, &info) != 0) return {};
    return {info.st_dev, info.st_ino};
}

bool is_writable(int fd) {
    pollfd item{fd, POLLOUT, 0};
    return ::poll(&item, 1, 0) > 0;
}

}  // namespace

RankOutput::RankOutput(std::string key)
    : key_(std::move(key)), timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
    for (int i = 0; i < 2; ++i) {
        pipes_.at(static_cast<std::size_t>(i)).fd = own_description(i + 1);
        inodes_.at(static_cast<std::size_t>(i)) = inode_of(i + 1);
    }
    static std::once_flag registered;
    std::call_once(registered, [] { ::pthread_atfork(nullptr, nullptr, &RankOutput::after_fork); });
    the_output = this;
}

RankOutput::~RankOutput() {
    the_output = nullptr;
}

RankOutput* RankOutput::current() {
    return the_output;
}

// In the child: its threads are gone, whatever they held, and its parent writes what it has
// gathered. The timer is the parent's.
void RankOutput::after_fork() {
    if (!the_output) return;
    RankOutput& output = *the_output;
    new (&output.gathering_) std::mutex;
    new (&output.writing_) std::mutex;
    (void)output.gather_.take();
    for (Pipe& pipe : output.pipes_) {
        pipe.unsent.clear();
        pipe.sent = 0;
    }
    output.forked_ = true;
}

bool RankOutput::add(Stream stream, std::string_view bytes, CallId owner) {
    const std::lock_guard lock(gathering_);
    if (forked_ || owner == call_) owner = 0;
    const auto then = gather_.add(stream, bytes, owner, TimePoint::clock::now());
    if (forked_) return bytes.find('\n') != std::string_view::npos;
    if (then == OutputGather::Then::write) return true;
    arm();
    return false;
}

// REQUIRES: gathering_ is held.
void RankOutput::arm() {
    if (armed_) return;
    constexpr auto kNanoseconds =
        std::chrono::duration_cast<std::chrono::nanoseconds>(OutputGather::kGather).count();
    const itimerspec once{{0, 0}, {0, kNanoseconds}};
    armed_ = ::timerfd_settime(timer_.get(), 0, &once, nullptr) == 0;
}

RankOutput::Flushed RankOutput::flush() {
    const std::lock_guard lock(writing_);
    return write_out(Wait::yes);
}

void RankOutput::flush_due() {
    std::uint64_t ignored = 0;
    (void)!::read(timer_.get(), &ignored, sizeof ignored);
    {
        const std::lock_guard lock(gathering_);
        armed_ = false;
    }
    bool left = true;  // who writes now may have taken less than there is
    if (writing_.try_lock()) {
        const std::lock_guard lock(writing_, std::adopt_lock);
        left = write_out(Wait::no) == Flushed::full;
    }
    if (!left) return;
    const std::lock_guard lock(gathering_);
    arm();
}

std::uint32_t RankOutput::mark(MarkFor what) {
    const std::lock_guard lock(writing_);
    const auto write_all = [this] {
        const auto limit = TimePoint::clock::now() + kMarkLimit;
        for (;;) {
            const Flushed flushed = write_out(Wait::yes);
            if (flushed == Flushed::done || flushed == Flushed::failed) return flushed;
            if (TimePoint::clock::now() > limit) return flushed;
        }
    };
    (void)write_all();
    // After ours: C stdio holds the begin of a line at most, which Python's lines do not wait for.
    std::fflush(nullptr);
    if (what == MarkFor::done && all_is_read()) return marks_ - marks_ % 2;
    const std::uint32_t number = put_mark(what);
    return write_all() == Flushed::done ? number : 0;
}

// Whether the pool has taken all that anybody wrote into the pipes. REQUIRES: writing_ is held.
bool RankOutput::all_is_read() const {
    return std::all_of(pipes_.begin(), pipes_.end(), [](const Pipe& pipe) {
        int unread = 0;
        return pipe.unsent.empty() && ::ioctl(pipe.fd.get(), FIONREAD, &unread) == 0 && unread == 0;
    });
}

// REQUIRES: writing_ is held.
std::uint32_t RankOutput::put_mark(MarkFor what) {
    const std::uint32_t parity = what == MarkFor::stream_switch ? 1 : 0;
    do {
        ++marks_;
    } while (marks_ % 2 != parity);
    for (Pipe& pipe : pipes_) pipe.unsent.push_back({mark_bytes(key_, marks_), true});
    return marks_;
}

// Takes what is gathered. REQUIRES: writing_ is held.
void RankOutput::collect() {
    std::vector<OutputGather::Segment> segments;
    {
        const std::lock_guard lock(gathering_);
        segments = gather_.take();
    }
    for (OutputGather::Segment& segment : segments) {
        if (last_ && last_ != segment.stream && !forked_) put_mark(MarkFor::stream_switch);
        last_ = segment.stream;
        Pipe& pipe = pipes_.at(index_of(segment.stream));
        if (segment.owner != 0)
            collect_owned(pipe, segment);
        else
            pipe.unsent.push_back({std::move(segment.text), false});
    }
}

// Text of another call stands between two marks, in parts that nothing can come into.
void RankOutput::collect_owned(Pipe& pipe, const OutputGather::Segment& segment) {
    const std::string begin = owner_mark_bytes(key_, segment.owner);
    const std::string end = owner_mark_bytes(key_, 0);
    const std::size_t room = PIPE_BUF - begin.size() - end.size();
    for (std::size_t at = 0; at < segment.text.size(); at += room) {
        std::string bytes = begin;
        bytes.append(segment.text, at, room).append(end);
        pipe.unsent.push_back({std::move(bytes), true});
    }
}

RankOutput::Flushed RankOutput::write_out(Wait wait) {
    collect();
    const Flushed out = write_pipe(1, wait);
    if (out == Flushed::interrupted) return out;
    const Flushed err = write_pipe(2, wait);
    return out == Flushed::done ? err : out;
}

RankOutput::Flushed RankOutput::write_pipe(int number, Wait wait) {
    Pipe& pipe = pipes_.at(static_cast<std::size_t>(number - 1));
    if (pipe.unsent.empty()) return Flushed::done;
    const bool ours = leads_to_pool(number);
    while (!pipe.unsent.empty()) {
        ssize_t written = write_some(pipe, number, ours, wait);
        if (written < 0 && errno == EINTR) return Flushed::interrupted;
        if (written < 0 && errno == EAGAIN) {
            if (wait == Wait::no) return Flushed::full;
            pollfd item{ours || pipe.unsent[0].mark ? pipe.fd.get() : number, POLLOUT, 0};
            const int ready = ::poll(&item, 1, kRoomLimitMs);
            if (ready < 0) return Flushed::interrupted;
            if (ready == 0) return Flushed::full;
            continue;
        }
        if (written < 0) {
            pipe.unsent.clear();
            pipe.sent = 0;
            return Flushed::failed;
        }
        while (written > 0) {
            const std::size_t left = pipe.unsent[0].bytes.size() - pipe.sent;
            const std::size_t taken = std::min(left, static_cast<std::size_t>(written));
            pipe.sent += taken;
            written -= static_cast<ssize_t>(taken);
            if (taken < left) break;
            pipe.unsent.pop_front();
            pipe.sent = 0;
        }
    }
    return Flushed::done;
}

// Writes one piece, or as many as the system puts into the pipe as one.
ssize_t RankOutput::write_some(const Pipe& pipe, int number, bool ours, Wait wait) const {
    const Piece& first = pipe.unsent[0];
    const char* bytes = first.bytes.data() + pipe.sent;
    const std::size_t size = first.bytes.size() - pipe.sent;
    if (!ours && !first.mark) {
        // Nothing is known of where it leads; PIPE_BUF fits what is writable if it is a pipe.
        if (wait == Wait::yes) return ::write(number, bytes, size);
        errno = EAGAIN;
        return is_writable(number) ? ::write(number, bytes, std::min<std::size_t>(size, PIPE_BUF))
                                   : -1;
    }
    std::array<iovec, kMostParts> parts{};
    std::size_t count = 0;
    std::size_t total = 0;
    for (const Piece& piece : pipe.unsent) {
        const std::size_t from = count == 0 ? pipe.sent : 0;
        const std::size_t more = piece.bytes.size() - from;
        const bool fits = count < parts.size() && total + more <= PIPE_BUF;
        if (count > 0 && (!fits || (!ours && !piece.mark))) break;
        // writev() only reads what it is given.
        parts.at(count++) = {const_cast<char*>(piece.bytes.data()) + from, more};
        total += more;
    }
    return ::writev(pipe.fd.get(), parts.data(), static_cast<int>(count));
}

bool RankOutput::leads_to_pool(int number) const {
    return inode_of(number) == inodes_.at(static_cast<std::size_t>(number - 1));
}

}  // namespace sgpu
