// Ports of servers.
#pragma once

#include <string>

namespace perigee {

/// Makes a socket, before it is bound, take an address and port that no other server has. httplib's default shares them
/// with other servers of the same user, and requests go to any of these.
void take_port_alone(int socket);

/// The host that a Host header names, in lower case and without its port.
std::string host_of(std::string const& header);

/// Whether a host is this machine's loopback. A page of the web must not reach a server there by a name that it made to
/// point to it, so such a server answers only requests whose Host header passes.
bool is_loopback(std::string const& host);

}  // namespace perigee
