// collective_sockets.h: shuts the sockets that collectives of this process wait on.
#pragma once

#include <string>

namespace sgpu {

// Shuts down, in both directions, every connected TCP socket of this process that has an end whose
// address begins with `prefix` (as text, "127.77."). Whoever waits on one gets an error at once;
// the peers see the connection end. With `poke_listeners`, also connects to each of the process's
// own listening sockets there as each of `world` peers and hangs up: a peer that published its
// address and never came leaves the other waiting in accept.
//
// Only sockets made for collectives have such addresses, so user sockets are left alone. Bounded:
// half a second for each connection it makes.
//
// Threads: any; needs no GIL, so it works while Python is stuck.
void shut_collective_sockets(const std::string& prefix, bool poke_listeners, int world);

}  // namespace sgpu
