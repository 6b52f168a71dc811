// The process's place in the job, and how the job ends. MPI is initialised here and nowhere else.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/host_comm.h"

namespace perigee {

/// One per process, made first in main. Under mpirun (or srun with PMI) it joins the job; started alone it is a job of
/// one rank and never touches MPI.
class Launch {
  public:
    /// Throws Category::communication where launcher and MPI library do not belong together.
    Launch(int* argc, char*** argv);
    /// Leaves the job in order. Not called on the error path: see abort().
    ~Launch();
    Launch(Launch const&) = delete;
    Launch& operator=(Launch const&) = delete;

    HostComm& world() { return *world_; }
    int local_rank() const { return local_rank_; }  ///< rank among the processes of this host
    int local_size() const { return local_size_; }
    HostBoard const& board() const { return board_; }

    /// Prints "perigee: <message>" once per host whatever the number of failing ranks, then ends
    /// every process of the job; mpirun returns the exit code. Never returns and never calls MPI_Finalize. Any thread
    /// may call it, also while another one hangs in a collective. Where MPI_Abort does not return within 5 seconds, the
    /// process ends itself.
    /// `patience`: how long the launcher, which may know more and ends the job of a dead rank by itself, may take for
    /// it.
    [[noreturn]] void abort(int exit_code, std::string const& message,
                            std::chrono::seconds patience = std::chrono::seconds(0)) noexcept;
    /// The same for an end that every rank comes to by itself: without MPI, and at once. The other ranks of the host
    /// see it on the board. After an abort() on this host the exit code is that one's: launchers end the other ranks
    /// with the signal that also means to stop.
    [[noreturn]] void leave(int exit_code, std::string const& message) noexcept;
    /// Ends a process that has not joined its job. The first rank of a host speaks at once; the others give it
    /// `patience`, as a launcher that sees one rank fail ends all, and then speak too; without patience they are
    /// silent.
    [[noreturn]] static void end_before_joining(int exit_code, std::string const& message,
                                                std::chrono::seconds patience) noexcept;

  private:
    /// Returns 0 where no process of the host ended with a message before, and this one is to speak for all; else that
    /// process's exit code.
    int claim_end(int exit_code) noexcept;
    void share_memory();

    std::unique_ptr<HostComm> world_;
    int local_rank_ = 0;
    int local_size_ = 1;
    RankStatus alone_;  ///< the board of a job without MPI
    HostBoard board_;
    struct Shared;
    std::unique_ptr<Shared> shared_;
    bool owns_mpi_ = false;
};

}  // namespace perigee
