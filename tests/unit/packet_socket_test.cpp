#include "runtime/packet_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

namespace sgpu {
namespace {

std::size_t open_descriptors() {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

struct Pair {
    Pair() {
        auto made = packet_pair();
        EXPECT_TRUE(made);
        here = std::move(made.value().first);
        there = std::move(made.value().second);
    }
    Sent send(std::string_view bytes, const std::vector<int>& fds = {}) const {
        return send_packet(here.get(), bytes, fds, Wait::no);
    }
    std::optional<Packet> receive() const { return recv_packet(there.get()); }
    UniqueFd here;
    UniqueFd there;
};

UniqueFd memfd_with(const std::string& text) {
    UniqueFd fd(::memfd_create("test", MFD_CLOEXEC));
    EXPECT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    return fd;
}

std::string content(const UniqueFd& fd) {
    char text[64] = {};
    const ssize_t n = ::pread(fd.get(), text, sizeof text, 0);
    return {text, n > 0 ? static_cast<std::size_t>(n) : 0};
}

TEST(PacketSocket, PacketsStayWholeAndInOrder) {
    const Pair pair;
    const std::string longest(kMaxPacket, 'x');
    EXPECT_EQ(pair.send("one"), Sent::yes);
    EXPECT_EQ(pair.send(longest), Sent::yes);
    EXPECT_EQ(pair.send(std::string("\0\n", 2)), Sent::yes);
    EXPECT_EQ(pair.receive()->bytes, "one");
    EXPECT_TRUE(pair.receive()->bytes == longest);
    EXPECT_EQ(pair.receive()->bytes, std::string("\0\n", 2));
    EXPECT_FALSE(pair.receive()) << "nothing is there now";
}

TEST(PacketSocket, DescriptorsTravelAndNoneLeaks) {
    const auto before = open_descriptors();
    {
        const Pair pair;
        std::vector<UniqueFd> owned;
        std::vector<int> fds;
        for (std::size_t i = 0; i < kMaxPacketFds; ++i) {
            owned.push_back(memfd_with(std::to_string(i)));
            fds.push_back(owned.back().get());
        }
        EXPECT_EQ(pair.send("many", fds), Sent::yes);
        const auto got = pair.receive();
        ASSERT_EQ(got->fds.size(), kMaxPacketFds);
        EXPECT_FALSE(got->fds_lost);
        for (std::size_t i = 0; i < kMaxPacketFds; ++i) {
            EXPECT_EQ(content(got->fds[i]), std::to_string(i));
            EXPECT_EQ(::fcntl(got->fds[i].get(), F_GETFD), FD_CLOEXEC);
        }
        EXPECT_EQ(pair.send("never taken", fds), Sent::yes);
    }
    EXPECT_EQ(open_descriptors(), before);
}

TEST(PacketSocket, WhatIsTooMuchForAPacketIsRefusedAndTheSocketGoesOn) {
    const Pair pair;
    EXPECT_EQ(pair.send(std::string(kMaxPacket + 1, 'x')), Sent::gone);
    EXPECT_EQ(pair.send("x", std::vector<int>(kMaxPacketFds + 1, 0)), Sent::gone);
    EXPECT_EQ(pair.send("x", {-1}), Sent::gone);
    EXPECT_EQ(pair.send("fits"), Sent::yes);
    EXPECT_EQ(pair.receive()->bytes, "fits");
}

TEST(PacketSocket, AFullSocketSaysSoAndTakesMoreOnceItIsRead) {
    const Pair pair;
    int sent = 0;
    while (pair.send(std::string(1000, 'x')) == Sent::yes) ++sent;
    EXPECT_GT(sent, 2);
    EXPECT_EQ(pair.send("y"), Sent::full);
    for (int i = 0; i < sent; ++i) EXPECT_EQ(pair.receive()->bytes.size(), 1000U) << i;
    EXPECT_EQ(pair.send("y"), Sent::yes);
}

// Linux reports the reset before it gives out what was sent: a rank's last answer would be lost.
TEST(PacketSocket, WhatAPeerSentIsThereThoughItWentWithoutReadingAllOfOurs) {
    Pair pair;
    EXPECT_EQ(send_packet(pair.there.get(), "never read", {}, Wait::no), Sent::yes);
    EXPECT_EQ(pair.send("the last words"), Sent::yes);
    pair.here.reset();
    EXPECT_EQ(pair.receive()->bytes, "the last words");
    EXPECT_EQ(pair.receive()->bytes, "") << "and then the end";
}

TEST(PacketSocket, WithWaitASlowPeerGetsEverything) {
    const Pair pair;
    constexpr int kPackets = 5000;
    std::thread sender([&] {
        for (int i = 0; i < kPackets; ++i)
            EXPECT_EQ(send_packet(pair.here.get(), std::to_string(i), {}, Wait::yes), Sent::yes);
    });
    for (int i = 0; i < kPackets;) {
        pollfd item{pair.there.get(), POLLIN, 0};
        ASSERT_EQ(::poll(&item, 1, 30'000), 1);
        for (auto got = pair.receive(); got; got = pair.receive())
            EXPECT_EQ(got->bytes, std::to_string(i++));
    }
    sender.join();
}

TEST(PacketSocket, APeerThatIsGoneIsKnownAndRaisesNoSignal) {
    Pair pair;
    EXPECT_EQ(pair.send("last words"), Sent::yes);
    pair.here.reset();
    EXPECT_EQ(pair.receive()->bytes, "last words");
    for (int i = 0; i < 2; ++i) EXPECT_EQ(pair.receive()->bytes, "");
    EXPECT_EQ(send_packet(pair.there.get(), "x", {}, Wait::yes), Sent::gone);
}

TEST(PacketSocket, APeerThatLeftUnreadPacketsIsGoneToo) {
    Pair pair;
    EXPECT_EQ(pair.send("unread"), Sent::yes);
    pair.there.reset();
    for (auto got = recv_packet(pair.here.get());; got = recv_packet(pair.here.get())) {
        ASSERT_TRUE(got);
        EXPECT_EQ(got->bytes, "");
        break;
    }
}

TEST(PacketSocket, WhatIsNoSuchSocketIsGone) {
    const UniqueFd file = memfd_with("text");
    EXPECT_EQ(recv_packet(file.get())->bytes, "");
    EXPECT_EQ(recv_packet(-1)->bytes, "");
    EXPECT_EQ(send_packet(file.get(), "x", {}, Wait::no), Sent::gone);
    EXPECT_EQ(send_packet(-1, "x", {}, Wait::no), Sent::gone);
}

TEST(PacketSocket, APacketArrivesThoughItsSenderIsKilledRightAfter) {
    Pair pair;
    const pid_t child = ::fork();
    if (child == 0) {
        send_packet(pair.here.get(), "before death", {}, Wait::no);
        ::kill(::getpid(), SIGKILL);
    }
    pair.here.reset();
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    EXPECT_EQ(pair.receive()->bytes, "before death");
    EXPECT_EQ(pair.receive()->bytes, "");
}

TEST(PacketSocket, DescriptorsThatFindNoRoomAreReportedAsLost) {
    const Pair pair;
    const UniqueFd one = memfd_with("one");
    const UniqueFd two = memfd_with("two");
    EXPECT_EQ(pair.send("two of them", {one.get(), two.get()}), Sent::yes);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const UniqueFd next(::dup(one.get()));
    const rlimit narrow{static_cast<rlim_t>(next.get()) + 2, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &narrow), 0);
    const auto got = pair.receive();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(got->bytes, "two of them");
    EXPECT_TRUE(got->fds_lost);
    EXPECT_EQ(got->fds.size(), 1U);
}

}  // namespace
}  // namespace sgpu
