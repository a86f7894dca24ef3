#include "runtime/shared_buffer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>
#include <string>
#include <vector>

namespace sgpu {
namespace {

// Long enough for several chunks, with bytes that betray a chunk in the wrong place.
std::string long_text() {
    std::string text(20'000'003, '\0');
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31 / 7);
    return text;
}

BufferView view(const std::string& text) {
    return {text.data(), text.size()};
}

SharedBuffer share_ok(const std::vector<BufferParts>& buffers, int threads = 2) {
    Result<SharedBuffer> shared = share(buffers, threads);
    EXPECT_TRUE(shared) << shared.error().message;
    return std::move(shared.value());
}

PrivateMapping map_ok(const SharedBuffer& shared) {
    Result<PrivateMapping> mapping = PrivateMapping::open(shared.fd.get());
    EXPECT_TRUE(mapping) << mapping.error().message;
    return std::move(mapping.value());
}

std::string text_at(const PrivateMapping& mapping, std::uint64_t offset, std::size_t size) {
    return {static_cast<const char*>(mapping.data()) + offset, size};
}

TEST(SharedBuffer, EveryBufferIsThereAtItsOffsetWhateverTheNumberOfThreads) {
    const std::string small = "small";
    const std::string large = long_text();
    for (const int threads : {1, 2, 16}) {
        const SharedBuffer shared =
            share_ok({{view(small)}, {view(large)}, {view(small)}}, threads);
        const PrivateMapping mapping = map_ok(shared);
        ASSERT_EQ(shared.offsets.size(), 3U);
        EXPECT_EQ(text_at(mapping, shared.offsets[0], small.size()), small);
        EXPECT_TRUE(text_at(mapping, shared.offsets[1], large.size()) == large) << threads;
        EXPECT_EQ(text_at(mapping, shared.offsets[2], small.size()), small);
    }
}

TEST(SharedBuffer, SizesAloneTellWhereBuffersAre) {
    const std::string full(SharedBuffer::kAlignment, 'x');
    const std::string more(SharedBuffer::kAlignment + 1, 'y');
    const SharedBuffer shared = share_ok({{view(full)}, {view(more)}, {}, {view(full)}});
    EXPECT_EQ(shared.offsets, (std::vector<std::uint64_t>{0, 4096, 12288, 12288}));
    EXPECT_EQ(shared.size, 16384U);
}

TEST(SharedBuffer, PiecesOfOneBufferLieEndToEnd) {
    const std::string first = "one ";
    const std::string second = "two";
    const SharedBuffer shared = share_ok({{view(first), view(second)}});
    EXPECT_EQ(text_at(map_ok(shared), 0, 7), "one two");
}

TEST(SharedBuffer, AHoleReadsAsZerosAndTakesNoMemory) {
    constexpr std::size_t kHole = std::size_t{1} << 36;  // more than this machine has
    const std::string end = "end";
    const SharedBuffer shared = share_ok({{{nullptr, kHole}, view(end)}});
    struct stat info {};
    ASSERT_EQ(::fstat(shared.fd.get(), &info), 0);
    EXPECT_LE(info.st_blocks * 512, 64 * 1024);
    const PrivateMapping mapping = map_ok(shared);
    EXPECT_EQ(text_at(mapping, kHole - 1, 4), std::string("\0end", 4));
}

TEST(SharedBuffer, NobodyCanChangeWhatWasShared) {
    const std::string text = "text";
    const SharedBuffer shared = share_ok({{view(text)}});
    EXPECT_EQ(::pwrite(shared.fd.get(), "x", 1, 0), -1);
    EXPECT_EQ(::ftruncate(shared.fd.get(), 0), -1);
    EXPECT_EQ(::fcntl(shared.fd.get(), F_ADD_SEALS, F_SEAL_GROW), -1) << "seals can be added";
}

TEST(SharedBuffer, TheDescriptorDoesNotPassToOtherPrograms) {
    const SharedBuffer shared = share_ok({});
    EXPECT_NE(::fcntl(shared.fd.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SharedBuffer, NoBuffersAreAnEmptyMapping) {
    const PrivateMapping mapping = map_ok(share_ok({}));
    EXPECT_EQ(mapping.size(), 0U);
    EXPECT_EQ(mapping.data(), nullptr);
}

TEST(SharedBuffer, WithoutDescriptorsItIsAnErrorThatSaysSo) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    rlimit none = before;
    none.rlim_cur = 0;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    const Result<SharedBuffer> shared = share({}, 1);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    ASSERT_FALSE(shared);
    EXPECT_EQ(shared.error().os_errno, EMFILE);
    EXPECT_NE(shared.error().message.find("create shared memory"), std::string::npos);
}

TEST(SharedBuffer, ACopyEndsWhenItsCallerDoesNotWantItAnyMore) {
    const std::string text(64UL << 20, 'x');
    const std::vector<BufferParts> buffers = {{view(text)}};
    for (const int threads : {1, 2}) {
        int asked = 0;
        const Result<SharedBuffer> shared = share(buffers, threads, [&] { return ++asked < 2; });
        ASSERT_FALSE(shared);
        EXPECT_EQ(shared.error().os_errno, ECANCELED);
        EXPECT_EQ(asked, 2);
    }
}

TEST(PrivateMapping, WritingInOneIsSeenByNoOther) {
    const std::string text = "shared";
    const SharedBuffer shared = share_ok({{view(text)}});
    const PrivateMapping mine = map_ok(shared);
    const PrivateMapping yours = map_ok(shared);
    std::memcpy(mine.data(), "MINE", 4);
    EXPECT_EQ(text_at(mine, 0, 6), "MINEed");
    EXPECT_EQ(text_at(yours, 0, 6), "shared");
    EXPECT_EQ(text_at(map_ok(shared), 0, 6), "shared");
}

TEST(PrivateMapping, ItOutlivesTheDescriptor) {
    const std::string text = "still here";
    SharedBuffer shared = share_ok({{view(text)}});
    const PrivateMapping mapping = map_ok(shared);
    shared.fd.reset();
    EXPECT_EQ(text_at(mapping, 0, text.size()), text);
}

TEST(PrivateMapping, MovingHandsTheMemoryOverAndUnmapsTheOld) {
    const std::string text = "first";
    const std::string other = "second";
    PrivateMapping mapping = map_ok(share_ok({{view(other)}}));
    PrivateMapping source = map_ok(share_ok({{view(text)}}));
    void* const memory = source.data();
    mapping = std::move(source);
    EXPECT_EQ(mapping.data(), memory);
    EXPECT_EQ(text_at(mapping, 0, 5), "first");
}

TEST(PrivateMapping, ABadDescriptorIsAnError) {
    const Result<PrivateMapping> mapping = PrivateMapping::open(-1);
    ASSERT_FALSE(mapping);
    EXPECT_EQ(mapping.error().os_errno, EBADF);
}

}  // namespace
}  // namespace sgpu
