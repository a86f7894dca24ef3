#include "runtime/output_pipe.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <thread>
#include <vector>

namespace sgpu {
namespace {

const std::string kKey = "0123456789abcdef";

// Both ends of a pipe that an OutputPipe reads.
struct Ends {
    Ends() {
        int ends[2] = {-1, -1};
        EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
        ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
        pipe = OutputPipe(UniqueFd(ends[0]), kKey);
        write_end.reset(ends[1]);
    }
    void write(std::string_view bytes) const {
        EXPECT_EQ(::write(write_end.get(), bytes.data(), bytes.size()),
                  static_cast<ssize_t>(bytes.size()));
    }
    OutputPipe pipe;
    UniqueFd write_end;
};

// Text as it is, a mark as <number>; neighbouring texts are one.
std::string show(const OutputPipe& pipe) {
    std::string shown;
    for (const auto& piece : pipe.pieces)
        shown += piece.mark == 0 ? piece.text : "<" + std::to_string(piece.mark) + ">";
    return shown;
}

std::string read_at_once(const std::string& bytes) {
    Ends ends;
    ends.write(bytes);
    ends.pipe.drain();
    return show(ends.pipe);
}

std::string read_byte_by_byte(const std::string& bytes) {
    Ends ends;
    for (const char byte : bytes) {
        ends.write({&byte, 1});
        EXPECT_TRUE(ends.pipe.read_some());
    }
    ends.pipe.drain();
    return show(ends.pipe);
}

TEST(OutputPipe, AMarkIsShorterThanWhatIsWrittenAtomically) {
    EXPECT_EQ(mark_bytes(kKey, 0x2a), "\x1e" + kKey + "0000002a\x1e");
    EXPECT_LT(mark_bytes(kKey, 0xffffffff).size(), 512U);  // the least PIPE_BUF there may be
}

TEST(OutputPipe, CutsAtMarksHoweverTheBytesArrive) {
    const std::string other_key = mark_bytes("fedcba9876543210", 4);
    const std::string half = mark_bytes(kKey, 6).substr(0, 20);
    const std::string no_number = "\x1e" + kKey + "0000zz06\x1e";
    const std::string no_end = "\x1e" + kKey + "00000006x";
    const std::string zero = mark_bytes(kKey, 0);
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"", ""},
        {"plain", "plain"},
        {mark_bytes(kKey, 2), "<2>"},
        {"a" + mark_bytes(kKey, 1) + "b" + mark_bytes(kKey, 4294967295U) + "c",
         "a<1>b<4294967295>c"},
        {mark_bytes(kKey, 1) + mark_bytes(kKey, 2), "<1><2>"},
        {"\x1e", "\x1e"},
        {"\x1e\x1e\x1e" + mark_bytes(kKey, 3), "\x1e\x1e\x1e<3>"},
        {"a\x1e" + kKey.substr(0, 9) + "no", "a\x1e" + kKey.substr(0, 9) + "no"},
        {other_key, other_key},
        {half + "!" + mark_bytes(kKey, 8), half + "!<8>"},
        {half + mark_bytes(kKey, 8) + "d", half + "<8>d"},
        {no_number + mark_bytes(kKey, 8), no_number + "<8>"},
        {no_end + mark_bytes(kKey, 8), no_end + "<8>"},
        {zero + mark_bytes(kKey, 8), zero + "<8>"},
        {half, half}};
    for (const auto& [bytes, shown] : cases) {
        EXPECT_EQ(read_at_once(bytes), shown);
        EXPECT_EQ(read_byte_by_byte(bytes), shown);
    }
}

TEST(OutputPipe, CutsAtMarksWhereverTheBytesAreCut) {
    const std::string bytes = "one\n" + mark_bytes(kKey, 7) + "two\x1e" + mark_bytes(kKey, 8) + "3";
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
        Ends ends;
        ends.write(bytes.substr(0, cut));
        ends.pipe.read_some();
        ends.write(bytes.substr(cut));
        ends.pipe.read_some();
        EXPECT_EQ(show(ends.pipe), "one\n<7>two\x1e<8>3") << "cut at " << cut;
    }
}

TEST(OutputPipe, WhatCannotBeAMarkIsNotHeldBack) {
    Ends ends;
    ends.write("prompt> ");
    EXPECT_TRUE(ends.pipe.read_some());
    EXPECT_EQ(show(ends.pipe), "prompt> ");
    EXPECT_FALSE(ends.pipe.read_some()) << "nothing is there";
    EXPECT_TRUE(ends.pipe.open());
}

TEST(OutputPipe, AtTheEndTheDescriptorIsClosedAndTheBeginOfAMarkIsText) {
    Ends ends;
    ends.write("x\x1e" + kKey.substr(0, 3));
    ends.write_end.reset();
    EXPECT_TRUE(ends.pipe.read_some());
    EXPECT_FALSE(ends.pipe.read_some());
    EXPECT_FALSE(ends.pipe.open());
    ends.pipe.drain();
    EXPECT_EQ(show(ends.pipe), "x\x1e" + kKey.substr(0, 3));
}

TEST(OutputPipe, AFloodIsReadInPartsAndWhole) {
    constexpr int kLines = 50'000;
    Ends ends;
    const std::string mark = mark_bytes(kKey, 9);
    std::thread writer([fd = ends.write_end.get(), &mark] {
        for (int i = 0; i < kLines; ++i) {
            const std::string text = "line " + std::to_string(i) + "\n" + (i % 1000 ? "" : mark);
            if (::write(fd, text.data(), text.size()) < 0) return;
        }
    });
    std::string read;
    const auto end_mark = [&] {
        return read.size() < 8 || read.substr(read.size() - 6) != "49999\n";
    };
    while (end_mark()) {
        ends.pipe.read_some();
        EXPECT_LE(show(ends.pipe).size(), 4U * 64 * 1024);
        read += show(ends.pipe);
        ends.pipe.pieces.clear();
    }
    writer.join();
    std::string wanted;
    for (int i = 0; i < kLines; ++i)
        wanted += "line " + std::to_string(i) + "\n" + (i % 1000 ? "" : "<9>");
    EXPECT_TRUE(read == wanted);
}

TEST(OutputPipe, DrainingAPipeThatIsWrittenForEverEnds) {
    const auto before = std::signal(SIGPIPE, SIG_IGN);
    Ends ends;
    std::thread writer([fd = std::move(ends.write_end)] {
        const std::string text(4096, 'x');
        while (::write(fd.get(), text.data(), text.size()) > 0) {
        }
    });
    ends.pipe.drain();
    EXPECT_FALSE(ends.pipe.open());
    writer.join();  // the read end is closed, so its write failed
    std::signal(SIGPIPE, before);
}

// Text with its owner before it, where it has one.
std::string show_owners(const OutputPipe& pipe) {
    std::string shown;
    for (const auto& piece : pipe.pieces)
        shown += (piece.owner != 0 ? std::to_string(piece.owner) + ":" : "") + piece.text;
    return shown;
}

TEST(OutputPipe, TextBetweenOwnerMarksBelongsToTheirCall) {
    const std::string bytes =
        "a" + owner_mark_bytes(kKey, 3) + "b" + owner_mark_bytes(kKey, 0) + "c";
    Ends at_once;
    at_once.write(bytes);
    EXPECT_TRUE(at_once.pipe.read_some());
    EXPECT_EQ(show_owners(at_once.pipe), "a3:bc");
    Ends byte_by_byte;
    for (const char byte : bytes) {
        byte_by_byte.write({&byte, 1});
        EXPECT_TRUE(byte_by_byte.pipe.read_some());
    }
    EXPECT_EQ(show_owners(byte_by_byte.pipe), "a3:bc");
}

TEST(OutputPipe, AnOwnerMarkIsAsLongAsAMark) {
    EXPECT_EQ(owner_mark_bytes(kKey, 0x2a), "\x1e" + kKey + "=000002a\x1e");
    EXPECT_EQ(owner_mark_bytes(kKey, 0xffffffffff).size(), mark_bytes(kKey, 1).size());
}

}  // namespace
}  // namespace sgpu
