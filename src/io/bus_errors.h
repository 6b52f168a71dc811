// A mapped file that shrinks, or whose disk fails, ends the process with SIGBUS at the next touch. With a range noted
// here the process says which file it was and exits with the data category's code instead.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace perigee {

/// Notes the memory of a mapped file for as long as it lives. The first one made installs the handler for SIGBUS;
/// faults elsewhere go to whoever handled the signal before. Thread-safe.
class BusErrorScope {
  public:
    BusErrorScope(std::span<std::byte const> bytes, std::string const& path);
    ~BusErrorScope();
    BusErrorScope(BusErrorScope const&) = delete;
    BusErrorScope& operator=(BusErrorScope const&) = delete;

    struct Range;

  private:
    Range* range_;
};

}  // namespace perigee
