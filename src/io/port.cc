#include "io/port.h"

#include <sys/socket.h>

#include <algorithm>
#include <cctype>

namespace perigee {

void take_port_alone(int socket) {
    int const yes = 1;  // connections of an earlier server may still be ending
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

bool is_loopback(std::string const& host) {
    bool const numbers = host.find_first_not_of("0123456789.") == std::string::npos;  // 127.example.org is a name
    return host == "localhost" || host == "::1" || host == "[::1]" || (numbers && host.starts_with("127."));
}

bool is_for_loopback(std::string const& host_header) {
    bool const v6 = host_header.starts_with("[");
    std::string host = host_header.substr(0, v6 ? host_header.find(']') + 1 : host_header.find(':'));
    std::ranges::transform(host, host.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return host.empty() || is_loopback(host);
}

}  // namespace perigee
