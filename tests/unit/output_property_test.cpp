// What must hold however the bytes arrive: fixed seeds, so a failure comes again.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <sstream>

#include "tests/unit/mux_support.h"

namespace sgpu {
namespace {

constexpr int kSeeds = 20;

class Dice {
public:
    explicit Dice(unsigned seed) : engine_(seed) {}
    int up_to(int most) { return static_cast<int>(engine_() % static_cast<unsigned>(most + 1)); }

private:
    std::mt19937 engine_;
};

struct Write {
    Stream stream;
    std::string text;
};

// Lines that are often, but not always, the same on all ranks. Every line ends.
std::vector<Write> script_of(Rank rank, Dice& dice) {
    std::vector<Write> writes;
    for (int i = 0; i < 40; ++i) {
        const Stream stream = dice.up_to(4) == 0 ? Stream::err : Stream::out;
        const std::string number = std::to_string(i);
        if (dice.up_to(3) == 0) writes.push_back({stream, "own " + std::to_string(rank) + "\n"});
        if (dice.up_to(9) != 0) writes.push_back({stream, "common é " + number + "\n"});
    }
    return writes;
}

// The lines of each rank in the order in which they are shown.
std::map<Rank, std::vector<std::string>> by_rank(const std::vector<Chunk>& chunks) {
    std::map<Rank, std::vector<std::string>> lines;
    for (const Chunk& chunk : chunks) {
        std::istringstream text(chunk.text);
        for (std::string line; std::getline(text, line);) {
            const std::size_t bracket = line.find(']');
            const auto ranks = RankSet::parse(line.substr(1, bracket - 1));
            EXPECT_TRUE(ranks) << line;
            const std::string mark = chunk.stream == Stream::out ? "out" : "err";
            for (const Rank rank : ranks.value())
                lines[rank].push_back(mark + line.substr(bracket + 1));
        }
    }
    return lines;
}

TEST(OutputProperty, AnyInterleavingKeepsTheOrderOfEachRank) {
    for (unsigned seed = 0; seed < kSeeds; ++seed) {
        Dice dice(seed);
        const int world = 2 + dice.up_to(14);
        OutputMux mux({.world = world});
        std::vector<std::vector<Write>> scripts;
        std::map<Rank, std::vector<std::string>> expected;
        for (Rank rank = 0; rank < world; ++rank) {
            scripts.push_back(script_of(rank, dice));
            for (const Write& write : scripts.back())
                expected[rank].push_back((write.stream == Stream::out ? "out " : "err ") +
                                         write.text.substr(0, write.text.size() - 1));
        }
        std::vector<Chunk> shown;
        const auto keep = [&shown](std::vector<Chunk> chunks) {
            for (Chunk& chunk : chunks) shown.push_back(std::move(chunk));
        };
        std::vector<std::size_t> place(scripts.size());
        TimePoint now = kStart;
        for (int left = world; left > 0; now += std::chrono::milliseconds(dice.up_to(20))) {
            const auto rank = static_cast<std::size_t>(dice.up_to(world - 1));
            if (place[rank] > scripts[rank].size()) continue;
            if (place[rank] == scripts[rank].size()) {
                mux.rank_ended(static_cast<Rank>(rank));
                ++place[rank];
                --left;
                continue;
            }
            const Write& write = scripts[rank][place[rank]++];
            mux.add(static_cast<Rank>(rank), write.stream, write.text, now);
            if (dice.up_to(2) == 0) keep(mux.take(now));
        }
        keep(mux.flush());
        EXPECT_EQ(by_rank(shown), expected) << "seed " << seed;
    }
}

// Bytes of every kind the merger knows, many of them broken.
std::string any_bytes(Dice& dice) {
    static const std::vector<std::string> pieces = {
        "a",    "word ", "\n",   "\r",       "\b",       "\x1b[A",  "\x1b[31m", "\x1b[0m",
        "é",    "😀",     "\xff", "\xe2\x82", "\x1b[K",   "\x1b[2K", "\x1b",     "\x1b]0;t\a",
        "\r\n", "\t",    "0%",   "\x1b[",    "\xf0\x9f", "   ",     "\n\r",     "\x07"};
    std::string bytes;
    for (int i = 0; i < 120; ++i)
        bytes += pieces[static_cast<std::size_t>(dice.up_to(static_cast<int>(pieces.size()) - 1))];
    return bytes;
}

TEST(OutputProperty, ByteByByteGivesTheSameTextAsOnePiece) {
    for (unsigned seed = 0; seed < 10 * kSeeds; ++seed) {
        Dice dice(seed);
        const std::string bytes = any_bytes(dice);
        OutputMux whole({.world = 2});
        OutputMux single({.world = 2});
        for (Rank rank = 0; rank < 2; ++rank) {
            whole.add(rank, Stream::out, bytes, kStart);
            for (const char& byte : bytes) single.add(rank, Stream::out, {&byte, 1}, kStart);
        }
        EXPECT_EQ(show(single.live()), show(whole.live())) << "seed " << seed;
        EXPECT_EQ(show(single.flush()), show(whole.flush())) << "seed " << seed;
    }
}

bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const auto lead = static_cast<unsigned char>(text[0]);
        const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
        if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4 || length > text.size()) return false;
        for (std::size_t i = 1; i < length; ++i)
            if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return false;
        text.remove_prefix(length);
    }
    return true;
}

TEST(OutputProperty, TheTextIsAlwaysUtf8InWholeLinesAndNothingWaitsForEver) {
    for (unsigned seed = 0; seed < 4 * kSeeds; ++seed) {
        Dice dice(seed);
        OutputMux mux({.world = 3});
        TimePoint now = kStart;
        std::string text;
        for (int i = 0; i < 30; ++i, now += std::chrono::milliseconds(dice.up_to(100))) {
            const Stream stream = dice.up_to(1) == 0 ? Stream::out : Stream::err;
            mux.add(dice.up_to(2), stream, any_bytes(dice), now);
            for (const Chunk& chunk : mux.take(now)) text += chunk.text;
        }
        for (int i = 0; mux.next_due(); ++i) {
            ASSERT_LT(i, 100) << "next_due() goes on without input, seed " << seed;
            now = std::max(now, *mux.next_due());
            for (const Chunk& chunk : mux.take(now)) text += chunk.text;
        }
        for (const Chunk& chunk : mux.flush()) text += chunk.text;
        EXPECT_TRUE(is_utf8(text)) << "seed " << seed;
        EXPECT_TRUE(text.ends_with('\n')) << "seed " << seed;
        EXPECT_EQ(text.find_first_of("\r\b"), std::string::npos) << "seed " << seed;
    }
}

}  // namespace
}  // namespace sgpu
