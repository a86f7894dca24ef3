#include "runtime/packet_socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace sgpu {

Result<std::pair<UniqueFd, UniqueFd>> packet_pair() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return os_error("socket pair for a rank");
    for (const int end : ends) {
        const int size = 2 * static_cast<int>(kMaxPacket);
        ::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    }
    return std::pair{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Sent send_packet(int socket, std::string_view bytes, const std::vector<int>& fds, Wait wait) {
    if (bytes.size() > kMaxPacket || fds.size() > kMaxPacketFds) return Sent::gone;
    iovec data{const_cast<char*>(bytes.data()), bytes.size()};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPacketFds)] = {};
    if (!fds.empty()) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
        cmsghdr* c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
        std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
    }
    ssize_t sent = 0;
    do {
        sent = ::sendmsg(socket, &header, MSG_NOSIGNAL | (wait == Wait::yes ? 0 : MSG_DONTWAIT));
    } while (sent < 0 && errno == EINTR);
    if (sent >= 0) return Sent::yes;
    return errno == EAGAIN ? Sent::full : Sent::gone;
}

std::optional<Packet> recv_packet(int socket) {
    thread_local std::string room(kMaxPacket, '\0');
    iovec data{room.data(), room.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPacketFds)];
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    ssize_t n = 0;
    do {
        n = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        // A peer that went without reading all of ours is reported once, ahead of what it sent.
    } while (n < 0 && (errno == EINTR || errno == ECONNRESET));
    const bool nothing_yet = errno == EAGAIN || errno == ENOMEM || errno == ENOBUFS;
    if (n < 0) return nothing_yet ? std::nullopt : std::optional<Packet>(Packet{});
    Packet packet{room.substr(0, static_cast<std::size_t>(n)), {}};
    packet.fds_lost = (header.msg_flags & MSG_CTRUNC) != 0;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            packet.fds.emplace_back(fd);
        }
    }
    return packet;
}

}  // namespace sgpu
