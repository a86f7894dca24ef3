// rank_output.h: the way of a rank's own text into the two pipes that the pool reads.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/output_gather.h"
#include "runtime/unique_fd.h"

namespace sgpu {

// Gathers what Python writes in a flood (OutputGather says when), orders stdout against stderr by
// marks (wire.md), and writes to descriptors 1 and 2 of the process.
//
// What is guaranteed: text is in its pipe, and outlives a SIGKILL of the rank, when add() and the
// flush() that it asks for have returned, in a flood OutputGather::kGather later, if the pipe has
// room. It comes before what is written otherwise to the descriptors after a flush().
// If user code has redirected a descriptor, its text goes where that leads.
//
// Threads: any, without Python's lock where a function says that it blocks. flush_due() is the
// agent's. A forked child drops what its parent had gathered; it gathers nothing for longer than a
// line, makes no marks, and must flush() before it ends.
class RankOutput {
public:
    // REQUIRES: descriptors 1 and 2 are the pool's pipes. One object in a process.
    explicit RankOutput(std::string key);
    ~RankOutput();
    RankOutput(const RankOutput&) = delete;
    RankOutput& operator=(const RankOutput&) = delete;

    // What is added from now on is this call's, unless it has another owner.
    void begin_call(CallId call) { call_ = call; }

    // Never blocks for long. True if the caller must flush() now. `owner`: the call that the text
    // belongs to; 0: the one that runs.
    [[nodiscard]] bool add(Stream stream, std::string_view bytes, CallId owner);

    enum class Flushed {
        done,         // all is in the pipes
        full,         // not all: the pool or whoever reads has not made room
        interrupted,  // not all: a signal came while it waited for room
        failed,       // errno says why; what was not written is dropped
    };
    // Writes all that was added before. Blocks while a pipe is full, for 100 ms at a time.
    Flushed flush();

    // Readable when flush_due() has something to do.
    int timer_fd() const { return timer_.get(); }
    // Writes what fits. Never blocks.
    void flush_due();

    // Flushes, C stdio too, and writes a mark into both pipes, even if descriptors 1 and 2 have
    // been redirected. Returns its number, 0 if it could not be written in 10 seconds. The end
    // of a call before which the pool has read all there is gets the last number again, and nothing
    // is written. A display always has a mark: what follows it must not be read before it.
    enum class MarkFor { display, done, stream_switch };
    std::uint32_t mark(MarkFor what);

    // The object of this process; null if there is none, and where it is not a rank.
    static RankOutput* current();

private:
    // Bytes for one pipe. Those that must not be torn apart by another process's are short.
    struct Piece {
        std::string bytes;
        bool mark = false;  // goes to the pool, wherever the descriptor leads
    };
    struct Pipe {
        UniqueFd fd;  // non-blocking, a description of its own
        std::deque<Piece> unsent;
        std::size_t sent = 0;  // of the first
    };
    enum class Wait { yes, no };

    static void after_fork();
    void arm();
    void collect();
    void collect_owned(Pipe& pipe, const OutputGather::Segment& segment);
    bool all_is_read() const;
    std::uint32_t put_mark(MarkFor what);
    Flushed write_out(Wait wait);
    Flushed write_pipe(int number, Wait wait);
    ssize_t write_some(const Pipe& pipe, int number, bool ours, Wait wait) const;
    bool leads_to_pool(int number) const;

    const std::string key_;
    UniqueFd timer_;
    bool forked_ = false;
    std::atomic<CallId> call_{0};

    std::mutex gathering_;  // guards the two below; never held while something blocks
    OutputGather gather_;
    bool armed_ = false;

    std::mutex writing_;  // guards what follows; taken before gathering_
    std::array<Pipe, 2> pipes_;
    std::array<std::pair<std::uint64_t, std::uint64_t>, 2> inodes_;  // of the pool's pipes
    std::uint32_t marks_ = 0;
    std::optional<Stream> last_;  // what was written last
};

}  // namespace sgpu
