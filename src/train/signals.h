// SIGTERM and SIGUSR1 ask the run to save and leave; a second one ends the process at once.
#pragma once

namespace perigee {

/// Catches the signals while it lives. One per process.
class StopSignal {
  public:
    StopSignal();
    ~StopSignal();
    StopSignal(StopSignal const&) = delete;
    StopSignal& operator=(StopSignal const&) = delete;

    /// Whether this process was asked to stop. Ranks must agree through a collective before acting on it.
    bool requested() const noexcept;
};

}  // namespace perigee
