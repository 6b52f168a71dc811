// Ports of servers.
#pragma once

#include <string>

namespace perigee {

/// Makes a socket, before it is bound, take an address and port that no other server has. httplib's default shares them
/// with other servers of the same user, and requests go to any of these.
void take_port_alone(int socket);

/// Whether an address or a name is that of this machine's loopback.
bool is_loopback(std::string const& host);

/// Whether a server at the loopback may answer a request with this Host header: one of the loopback, with or without a
/// port, or none. A page of the web could otherwise reach the server by a name that it made to point there.
bool is_for_loopback(std::string const& host_header);

}  // namespace perigee
