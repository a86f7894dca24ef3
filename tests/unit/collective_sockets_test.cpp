#include "runtime/collective_sockets.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>

#include "runtime/unique_fd.h"

namespace sgpu {
namespace {

constexpr int kBoundMs = 30'000;

// Both ends of a TCP connection over loopback, and the listener that made it.
struct Connection {
    explicit Connection(const char* address) {
        sockaddr_in where{};
        where.sin_family = AF_INET;
        ::inet_pton(AF_INET, address, &where.sin_addr);
        socklen_t size = sizeof where;
        listener.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&where), size), 0);
        EXPECT_EQ(::listen(listener.get(), 16), 0);
        ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&where), &size);
        client.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        EXPECT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&where), size), 0);
        server.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    }
    bool at_end() const {
        pollfd item{server.get(), POLLIN, 0};
        char byte = 0;
        return ::poll(&item, 1, kBoundMs) == 1 && ::recv(server.get(), &byte, 1, MSG_DONTWAIT) == 0;
    }
    bool carries() const {
        char byte = 'x';
        return ::send(client.get(), &byte, 1, MSG_NOSIGNAL) == 1 &&
               ::recv(server.get(), &byte, 1, 0) == 1;
    }
    UniqueFd listener;
    UniqueFd client;
    UniqueFd server;
};

TEST(CollectiveSockets, ShutsThoseWithThePrefixAndLeavesTheUsersAlone) {
    const Connection collective("127.77.0.5");
    const Connection user("127.0.0.1");
    const Connection other("127.7.7.1");
    shut_collective_sockets("127.77.", false, 2);
    EXPECT_TRUE(collective.at_end());
    EXPECT_FALSE(collective.carries());
    EXPECT_TRUE(user.carries());
    EXPECT_TRUE(other.carries());
}

TEST(CollectiveSockets, AListenerIsVisitedByEachPeerOnlyWhenAsked) {
    const Connection collective("127.77.0.6");
    shut_collective_sockets("127.77.", false, 3);
    pollfd item{collective.listener.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&item, 1, 0), 0) << "nobody came";
    shut_collective_sockets("127.77.", true, 3);
    for (std::int64_t rank = 0; rank < 3; ++rank) {
        ASSERT_EQ(::poll(&item, 1, kBoundMs), 1) << rank;
        const UniqueFd peer(::accept4(collective.listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        std::int64_t name = -1;
        ASSERT_EQ(::recv(peer.get(), &name, sizeof name, MSG_WAITALL),
                  static_cast<ssize_t>(sizeof name));
        EXPECT_EQ(name, rank);
        EXPECT_EQ(::recv(peer.get(), &name, sizeof name, 0), 0) << "it hangs up";
    }
}

}  // namespace
}  // namespace sgpu
