// The launcher of this process, as its ranks see it: whether it lives, and whether it asks them to stop.
//
// launch/mpirun.sh names a file in PERIGEE_LAUNCHER that it holds locked. It removes the file to ask the ranks to stop;
// when it dies, the lock is free. A rank that comes late sees the same, so no request is lost while a job starts. In
// turn each rank shares the lock of the file `ranks` in the same folder: the script sees when all have ended.
#pragma once

#include <sys/types.h>

#include <string>

namespace perigee {

class Launcher {
  public:
    /// Remembers who started this process; `has_launcher` is false for a process started alone.
    explicit Launcher(bool has_launcher);
    ~Launcher();
    Launcher(Launcher const&) = delete;
    Launcher& operator=(Launcher const&) = delete;

    /// The launching script asks its ranks to stop, or has died.
    bool asks_to_stop() const noexcept;
    /// The process that started this rank has died, and MPI with it.
    bool is_gone() const noexcept;
    pid_t pid() const { return parent_; }

  private:
    pid_t parent_ = 0;  ///< 0: nobody to look for
    std::string file_;  ///< empty where there is none to look at
    int descriptor_ = -1;
    int ranks_ = -1;  ///< shares a lock while this process lives
};

/// Where launch/mpirun.sh runs on a terminal of this host, which it names in PERIGEE_TERMINAL, that terminal becomes
/// this process's standard error: mpirun forwards whole lines only, which breaks progress bars. Call it on one rank.
void take_launchers_terminal() noexcept;

/// Ranks that mpirun or srun says it started: 0 when there is no launcher, 1 where it does not say how many. Throws
/// Category::communication where srun does not serve MPI.
int ranks_promised();
/// This process's number among those of its host, as far as its launcher told; else 0.
int local_rank_promised() noexcept;

}  // namespace perigee
