// output_pipe.h: the reading end of one rank's stdout or stderr, cut at marks (wire.md).
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "runtime/stream.h"
#include "runtime/unique_fd.h"

namespace sgpu {

// The bytes of a mark. REQUIRES: `key` has 16 characters; `number` is not 0.
std::string mark_bytes(const std::string& key, std::uint32_t number);
// What follows it in this pipe belongs to `call`, up to the next such mark; 0: to the call that
// runs.
std::string owner_mark_bytes(const std::string& key, CallId call);

// Owns the read end and what was read and not yet taken.
//
// Threads: one thread at a time.
class OutputPipe {
public:
    struct Piece {
        std::string text;        // output, or empty for a mark
        std::uint32_t mark = 0;  // the mark's number
        CallId owner = 0;        // the call whose output it is; 0: the one that runs
    };

    OutputPipe() = default;
    // `fd` is a non-blocking read end.
    OutputPipe(UniqueFd fd, std::string key);

    int fd() const { return fd_.get(); }
    bool open() const { return static_cast<bool>(fd_); }

    // Reads what is there now, up to some 256 KB, and appends to pieces. True if there was
    // anything. At the pipe's end the descriptor is closed.
    bool read_some();

    // Reads until nothing is left and gives up what was held back as the possible begin of a mark.
    // For a rank that is dead: its children may hold the pipe open, so its end is not waited for.
    void drain();

    std::deque<Piece> pieces;

private:
    void cut();
    void emit(std::size_t from, std::size_t to);

    UniqueFd fd_;
    std::string key_;
    std::string tail_;  // not yet cut: may hold the begin of a mark at its end
    CallId owner_ = 0;  // of what follows
};

}  // namespace sgpu
