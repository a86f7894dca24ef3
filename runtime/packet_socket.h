// packet_socket.h: packets with descriptors over a SOCK_SEQPACKET socket pair.
//
// The operating system keeps packets whole, carries descriptors, knows the peer, and delivers what
// was sent even if the sender is killed right after.
//
// Threads: any thread may send; one thread receives.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace sgpu {

// The longest packet, in bytes. What is longer travels in a shared buffer.
inline constexpr std::size_t kMaxPacket = std::size_t{192} * 1024;

// The most descriptors in one packet; Linux allows 253.
inline constexpr std::size_t kMaxPacketFds = 240;

// Two connected ends, close-on-exec, with room for packets of kMaxPacket bytes.
Result<std::pair<UniqueFd, UniqueFd>> packet_pair();

enum class Sent {
    yes,
    full,  // the peer does not read; only without Wait::yes
    gone,  // the peer is gone, or the packet is too long or cannot be sent at all
};
enum class Wait { no, yes };

// Sends one packet; `fds` stay the caller's. Blocks only with Wait::yes, while the peer is slow.
Sent send_packet(int socket, std::string_view bytes, const std::vector<int>& fds, Wait wait);

struct Packet {
    std::string bytes;  // empty: the peer is gone, or the descriptor is no such socket
    std::vector<UniqueFd> fds;
    bool fds_lost = false;  // this process had no room for all descriptors that came
};

// The next packet if there is one now. Never blocks.
std::optional<Packet> recv_packet(int socket);

}  // namespace sgpu
