// Ports of servers.
#pragma once

namespace perigee {

/// Makes a socket, before it is bound, take an address and port that no other server has. httplib's default shares them
/// with other servers of the same user, and requests go to any of these.
void take_port_alone(int socket);

}  // namespace perigee
