// What the processor of this machine is called.
#pragma once

#include <string>

namespace perigee {

/// As the system names it, "AMD EPYC 9554 64-Core Processor"; "cpu" where it does not.
std::string cpu_name();

}  // namespace perigee
