// output.h: what cells write, gathered and published in few messages.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/event_fd.h"
#include "runtime/stream.h"
#include "runtime/unique_fd.h"

namespace sgpu {

// The header of the request whose output something is. Many owners: the cell, its threads, and the
// text of it that waits here.
using Parent = std::shared_ptr<const nlohmann::json>;

// Takes Python's text and all that is written to file descriptors 1 and 2 of the process (C
// libraries, os.system, subprocesses), keeps the order of both, and publishes it kDelay after the
// first of it, at kEnough bytes, and at every flush(). Neighbouring pieces of one stream and one
// cell become one message. Text that is not UTF-8 is published with replacement characters.
//
// Threads: any; has one of its own, which needs no GIL. A lock is never held across publishing but
// the one that keeps messages in order, so write() may be called with the GIL.
class Output {
public:
    using Publish =
        std::function<void(Stream, const std::string& text, const nlohmann::json& parent)>;
    static constexpr std::chrono::milliseconds kDelay{50};
    static constexpr std::size_t kEnough = std::size_t{64} * 1024;

    // Redirects descriptors 1 and 2 to pipes. `publish` is called from any thread.
    // Errors: throws std::system_error if the system has no pipe for us.
    explicit Output(Publish publish);
    ~Output();
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;

    // True if so much is waiting that the caller should flush(), without the GIL.
    bool write(Stream stream, std::string_view text, const Parent& parent);

    // From now on, what comes through the descriptors belongs to `parent`.
    void begin_cell(const Parent& parent);

    // Publishes all that was written before the call, by C's stdio too. May block as `publish`
    // does: not with the GIL.
    void flush();

    // Where descriptors 1 and 2 led before. Stay owned by this object.
    int original_stdout() const { return originals_[0].get(); }
    int original_stderr() const { return originals_[1].get(); }

private:
    struct Piece {
        Stream stream;
        Parent parent;
        std::string text;
    };

    void add(Stream stream, std::string_view text, const Parent& parent);
    void read_pipes();
    void read_pipe(Stream stream);
    void publish_gathered();
    void run(const std::stop_token& stop);
    int until_due();

    Publish publish_;
    std::array<UniqueFd, 2> originals_;
    std::array<UniqueFd, 2> pipes_;          // the reading ends
    std::array<std::string, 2> unfinished_;  // a UTF-8 character that is not complete yet

    std::mutex reading_;  // guards pipes_' contents, unfinished_ and current_
    Parent current_;
    std::mutex gathering_;  // guards the three below
    std::vector<Piece> pieces_;
    std::size_t size_ = 0;
    std::optional<std::chrono::steady_clock::time_point> due_;
    std::mutex publishing_;  // keeps messages in the order of the pieces

    EventFd wake_;
    std::jthread thread_;  // last: it uses all above
};

}  // namespace sgpu
