// mux_support.h: what the tests of the output merger share.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/output_mux.h"

namespace sgpu {

using namespace std::chrono_literals;

inline constexpr TimePoint kStart{1h};

// All text of the chunks, `err` chunks in braces, displays in angles: "[0] a\n{[0] b\n}<0-1
// figure>".
inline std::string show(const std::vector<Chunk>& chunks) {
    std::string text;
    for (const Chunk& chunk : chunks) {
        if (!chunk.type.empty())
            text += "<" + chunk.ranks.to_string() + " " + chunk.text + ">";
        else
            text += chunk.stream == Stream::out ? chunk.text : "{" + chunk.text + "}";
    }
    return text;
}

// "[0-1] 10%|[2] 20%"
inline std::string show(const std::vector<LiveLine>& lines) {
    std::string text;
    for (const LiveLine& line : lines)
        text += (text.empty() ? "[" : "|[") + line.ranks.to_string() + "] " + line.text;
    return text;
}

inline void add_to_all(OutputMux& mux, int world, std::string_view text, TimePoint now,
                       Stream stream = Stream::out) {
    for (Rank rank = 0; rank < world; ++rank) mux.add(rank, stream, text, now);
}

}  // namespace sgpu
