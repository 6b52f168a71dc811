// Prints docs/config.md from the descriptions of the option structs.
#include <cstdio>

#include "config/config.h"

int main() { return std::fputs(perigee::config_reference().c_str(), stdout) < 0 ? 1 : 0; }
