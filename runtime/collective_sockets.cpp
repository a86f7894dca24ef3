#include "runtime/collective_sockets.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

#include "runtime/unique_fd.h"

namespace sgpu {
namespace {

constexpr timeval kConnectLimit{0, 500'000};
constexpr int kFirstFd = 3;

std::vector<int> open_descriptors() {
    std::vector<int> found;
    DIR* folder = ::opendir("/proc/self/fd");
    if (!folder) return found;
    while (const dirent* entry = ::readdir(folder)) {
        const int fd = static_cast<int>(std::strtol(entry->d_name, nullptr, 10));
        if (fd >= kFirstFd && fd != ::dirfd(folder)) found.push_back(fd);
    }
    ::closedir(folder);
    return found;
}

// The IPv4 address in `address`, IPv4 mapped into IPv6 included; "" for any other.
std::string ipv4_text(const sockaddr_storage& address) {
    char text[INET_ADDRSTRLEN] = "";
    if (address.ss_family == AF_INET) {
        const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
        ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    } else if (address.ss_family == AF_INET6) {
        const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
        if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr))
            ::inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof text);
    }
    return text;
}

bool has_prefix(const sockaddr_storage& address, const std::string& prefix) {
    return ipv4_text(address).rfind(prefix, 0) == 0;
}

// Comes as each peer of gloo would, with its rank as the first eight bytes, and hangs up.
void poke(const sockaddr_storage& listener, socklen_t length, int world) {
    for (int rank = 0; rank < world; ++rank) {
        const UniqueFd socket(::socket(listener.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kConnectLimit, sizeof kConnectLimit);
        if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&listener), length) != 0)
            continue;
        const std::int64_t name = rank;
        (void)::send(socket.get(), &name, sizeof name, MSG_NOSIGNAL);
    }
}

}  // namespace

void shut_collective_sockets(const std::string& prefix, bool poke_listeners, int world) {
    for (const int number : open_descriptors()) {
        // A copy: what is looked at is what is shut, whatever the owner does to the number.
        const UniqueFd fd(::fcntl(number, F_DUPFD_CLOEXEC, kFirstFd));
        sockaddr_storage own{};
        socklen_t own_length = sizeof own;
        if (!fd || ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &own_length) != 0)
            continue;
        if (own.ss_family != AF_INET && own.ss_family != AF_INET6) continue;
        int listening = 0;
        socklen_t size = sizeof listening;
        ::getsockopt(fd.get(), SOL_SOCKET, SO_ACCEPTCONN, &listening, &size);
        if (listening) {
            if (poke_listeners && has_prefix(own, prefix)) poke(own, own_length, world);
            continue;
        }
        sockaddr_storage peer{};
        socklen_t peer_length = sizeof peer;
        const bool connected =
            ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0;
        if (has_prefix(own, prefix) || (connected && has_prefix(peer, prefix)))
            ::shutdown(fd.get(), SHUT_RDWR);
    }
}

}  // namespace sgpu
