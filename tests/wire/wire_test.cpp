#include "runtime/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace sgpu {
namespace {

using nlohmann::json;

std::string from_hex(const std::string& hex) {
    std::string bytes;
    for (std::size_t i = 0; i < hex.size(); i += 2)
        bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return bytes;
}

std::string u32(std::size_t value) {
    std::string bytes;
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
    return bytes;
}

// A packet by hand: prefix with kind and number of parts, lengths, parts.
std::string packet(const std::string& prefix, const std::string& body,
                   const std::vector<std::string>& frames = {}) {
    std::string bytes = prefix + u32(body.size());
    for (const auto& frame : frames) bytes += u32(frame.size());
    bytes += body;
    for (const auto& frame : frames) bytes += frame;
    return bytes;
}

struct Golden {
    std::string name;
    std::string bytes;
    json body;
    std::vector<std::string> frames;
};

std::vector<Golden> goldens() {
    std::vector<Golden> all;
    std::ifstream file(SGPU_SOURCE_DIR "/tests/wire/golden.jsonl");
    for (std::string line; std::getline(file, line);) {
        const json golden = json::parse(line);
        const std::vector<std::string> frames = golden["frames"];
        all.push_back({golden["name"],
                       packet(from_hex(golden["prefix"]), golden["body"].dump(), frames),
                       golden["body"], frames});
    }
    return all;
}

// The JSON body of encoded bytes.
json body_of(const std::string& bytes) {
    std::uint32_t parts = 0;
    std::uint32_t length = 0;
    std::memcpy(&parts, bytes.data() + 4, sizeof parts);
    std::memcpy(&length, bytes.data() + 8, sizeof length);
    return json::parse(bytes.substr(8 + 4 * std::size_t{parts}, length));
}

TEST(Wire, EachMessageIsItsGoldenLine) {
    std::size_t lines = 0;
    for (const Golden& golden : goldens()) {
        const auto message = decode(golden.bytes);
        ASSERT_TRUE(message) << golden.name << ": " << message.error().message;
        EXPECT_EQ(message.value().body.index(), lines++) << golden.name;
        EXPECT_EQ(message.value().frames, golden.frames) << golden.name;
        EXPECT_FALSE(message.value().buffer) << golden.name;
        const std::string again = encode(message.value().body, message.value().frames);
        EXPECT_EQ(body_of(again), golden.body) << golden.name;
        EXPECT_EQ(again.substr(0, 8), golden.bytes.substr(0, 8)) << golden.name;
        EXPECT_EQ(again.size(), golden.bytes.size()) << golden.name;
    }
    EXPECT_EQ(lines, std::variant_size_v<Body>) << "a message has no golden line";
}

TEST(Wire, EveryTruncationIsAnErrorAndSoIsEveryByteTooMuch) {
    for (const Golden& golden : goldens()) {
        for (std::size_t size = 0; size < golden.bytes.size(); ++size) {
            const auto cut = decode(golden.bytes.substr(0, size));
            ASSERT_FALSE(cut) << golden.name << " cut to " << size;
            EXPECT_EQ(cut.error().code, Errc::bad_message);
        }
        EXPECT_FALSE(decode(golden.bytes + "x")) << golden.name;
    }
}

TEST(Wire, UnknownFieldsAreIgnoredAndMissingOnesHaveTheirDefault) {
    const std::string done = from_hex("5347010601000000");
    const auto known = decode(packet(done, R"({"call":3,"ok":true,"news":[1,{"x":null}]})"));
    ASSERT_TRUE(known);
    EXPECT_EQ(std::get<Done>(known.value().body).call, 3U);
    const auto empty = decode(packet(done, "{}"));
    ASSERT_TRUE(empty);
    EXPECT_FALSE(std::get<Done>(empty.value().body).ok) << "a default must not hide a failure";
}

TEST(Wire, UnknownKindsVersionsAndStrangersAreRefused) {
    std::string bytes = encode(Ping{1});
    const auto with = [&](std::size_t at, unsigned char value) {
        std::string changed = bytes;
        changed[at] = static_cast<char>(value);
        return decode(changed);
    };
    EXPECT_TRUE(with(0, 'S'));
    EXPECT_FALSE(with(0, 's'));
    EXPECT_FALSE(with(1, 'P'));
    for (const int version : {0, 2, 255})
        EXPECT_NE(with(2, static_cast<unsigned char>(version)).error().message.find("version"),
                  std::string::npos);
    for (std::size_t kind = std::variant_size_v<Body>; kind < 256; ++kind)
        EXPECT_FALSE(with(3, static_cast<unsigned char>(kind))) << kind;
}

TEST(Wire, ABodyThatIsNoObjectOrHasAFieldOfAnotherTypeIsRefused) {
    const std::string hello = from_hex("5347010501000000");
    for (const std::string body : {"", "[]", "3", "null", "{", "{\"key\":1}", "{\"pid\":\"1\"}",
                                   "{\"key\":[]}", "{\"key\":\"\xff\"}", "{} {}"})
        EXPECT_FALSE(decode(packet(hello, body))) << body;
    const std::string done = from_hex("5347010601000000");
    for (const std::string body : {"{\"ok\":1}", "{\"call\":{}}", "{\"mark\":null}"})
        EXPECT_FALSE(decode(packet(done, body))) << body;
}

TEST(Wire, LengthsThatLieAreRefused) {
    const std::string start = from_hex("53470102");
    EXPECT_FALSE(decode(start + u32(0)));
    EXPECT_FALSE(decode(start + u32(0xffffffff)));
    EXPECT_FALSE(decode(start + u32(0x40000000) + u32(2) + "{}"));
    EXPECT_FALSE(decode(start + u32(1) + u32(3) + "{}"));
    EXPECT_FALSE(decode(start + u32(2) + u32(2) + u32(0xffffffff) + "{}"));
    EXPECT_FALSE(decode(start + u32(2) + u32(0xfffffffe) + u32(4) + "{}"));
    EXPECT_TRUE(decode(start + u32(2) + u32(2) + u32(0) + "{}"));
}

TEST(Wire, ABodyMayBeNestedButNotDeeply) {
    const auto nested = [](std::size_t depth) {
        return packet(from_hex("5347010501000000"),
                      "{\"service\":" + std::string(depth, '[') + std::string(depth, ']') + "}");
    };
    EXPECT_TRUE(decode(nested(20)));
    EXPECT_TRUE(decode(nested(63)));
    EXPECT_FALSE(decode(nested(64)));
    EXPECT_FALSE(decode(nested(1'000'000)));
    const std::string brackets(200, '[');
    const auto in_text = decode(encode(Stack{1, "\"" + brackets + "\\\"{", "", ""}));
    ASSERT_TRUE(in_text) << "brackets in a text are no nesting";
    EXPECT_EQ(std::get<Stack>(in_text.value().body).text, "\"" + brackets + "\\\"{");
}

TEST(Wire, TextThatIsNoUtf8IsSentAsReplacements) {
    const auto message = decode(encode(Stack{1,
                                             "a\xff"
                                             "b",
                                             "", ""}));
    ASSERT_TRUE(message);
    EXPECT_EQ(std::get<Stack>(message.value().body).text,
              "a\xef\xbf\xbd"
              "b");
}

// A rank can write anything. What is accepted must survive being sent again.
TEST(Wire, RandomBytesNeverCrash) {
    std::mt19937 random(20'240'607);  // fixed: a failure can be repeated
    const auto all = goldens();
    int accepted = 0;
    for (int i = 0; i < 20'000; ++i) {
        std::string bytes = all[random() % all.size()].bytes;
        const auto changes = random() % 4;
        for (std::size_t k = 0; k <= changes; ++k) {
            const std::size_t at = random() % bytes.size();
            switch (random() % 4) {
                case 0:
                    bytes[at] = static_cast<char>(random());
                    break;
                case 1:
                    bytes.insert(at, 1, static_cast<char>(random()));
                    break;
                case 2:
                    bytes.erase(at, 1 + random() % 3);
                    break;
                default:
                    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
            }
            if (bytes.empty()) bytes = "S";
        }
        const auto message = decode(bytes);
        if (!message) continue;
        ++accepted;
        EXPECT_TRUE(decode(encode(message.value().body, message.value().frames)));
    }
    EXPECT_GT(accepted, 100) << "the changes are too wild to test anything";
    for (int i = 0; i < 20'000; ++i) {
        std::string bytes = "SG\x01";
        for (auto n = random() % 64; n > 0; --n) bytes += static_cast<char>(random());
        (void)decode(bytes);
    }
}

}  // namespace
}  // namespace sgpu
