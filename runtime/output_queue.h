// output_queue.h: output that is on its way from the pool to the notebook.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/rank_set.h"
#include "runtime/stream.h"

namespace sgpu {

// A piece of output of a call, in the order in which it is to be shown.
struct OutputEvent {
    CallId call = 0;
    RankSet ranks;        // of a display; empty for text, whose lines carry their ranks
    std::string type;     // "stdout", "stderr", or a Jupyter message type
    std::string content;  // text, or the JSON content of the message
};

// Ranks never wait for the notebook, and it may take nothing for as long as one of its cells holds
// the GIL. Text is bounded where it is merged (OutputMux::Options::max_bytes). Of displays beyond
// the limits the oldest are dropped, since the newest is what a rank has to show now; a line says
// how many.
//
// Threads: one at a time.
class OutputQueue {
public:
    struct Limits {
        std::size_t displays = 1000;
        std::size_t bytes = 64UL << 20;  // of displays
    };

    // Neighbouring text of one stream is one event up to about this many bytes: a message that is
    // much larger makes a front end stutter.
    static constexpr std::size_t kEnough = 256UL << 10;

    OutputQueue() = default;
    explicit OutputQueue(Limits limits) : limits_(limits) {}

    void add_text(CallId call, Stream stream, std::string text);
    void add_display(OutputEvent event);
    bool empty() const { return events_.empty(); }
    // All of it.
    std::vector<OutputEvent> take();

private:
    bool too_much() const;
    void drop_oldest_display();

    Limits limits_;
    std::vector<OutputEvent> events_;
    std::size_t displays_ = 0;
    std::size_t bytes_ = 0;
    std::map<CallId, std::size_t> dropped_;  // displays since the last take()
};

}  // namespace sgpu
