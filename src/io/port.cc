#include "io/port.h"

#include <sys/socket.h>

namespace perigee {

void take_port_alone(int socket) {
    int const yes = 1;  // connections of an earlier server may still be ending
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

}  // namespace perigee
