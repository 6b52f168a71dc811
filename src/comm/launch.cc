#include "comm/launch.h"

#include <mpi.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <new>
#include <system_error>
#include <thread>

#include "base/printable.h"
#include "comm/launcher.h"
#include "comm/leftovers.h"
#include "comm/mpi/check.h"
#include "comm/mpi/mpi_host_comm.h"

namespace perigee {

namespace {

using detail::check_mpi;

/// How long a failing rank that is not the one to speak waits to be ended with the job.
constexpr std::chrono::seconds kAbortPatience{5};

void say(std::string const& message) noexcept {
    std::fprintf(stderr, "perigee: %s\n", printable(message).c_str());
    std::fflush(stderr);
}

/// Ends the process after a while, whatever its other threads wait for.
void end_after(std::chrono::seconds patience, int exit_code) noexcept {
    try {
        std::thread([patience, exit_code] {
            std::this_thread::sleep_for(patience);
            _exit(exit_code);
        }).detach();
    } catch (std::system_error const&) {
        _exit(exit_code);  // no thread can be made, and none may hang
    }
}

}  // namespace

/// Memory of all processes of a host. The board's entries follow in memory, one per process.
struct Launch::Shared {
    MPI_Comm host = MPI_COMM_NULL;
    MPI_Win window = MPI_WIN_NULL;
    std::atomic<int>* claim = nullptr;  ///< 0 until a process ends, and speaks for all: then its exit code
};

void Launch::share_memory() {
    shared_ = std::make_unique<Shared>();
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &shared_->host),
              "MPI_Comm_split_type");
    check_mpi(MPI_Comm_rank(shared_->host, &local_rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(shared_->host, &local_size_), "MPI_Comm_size");

    constexpr size_t kBoardOffset = 64;
    auto const ranks = static_cast<size_t>(local_size_);
    void* memory = nullptr;
    auto bytes = static_cast<MPI_Aint>(local_rank_ == 0 ? kBoardOffset + ranks * sizeof(RankStatus) : 0);
    check_mpi(MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, shared_->host, &memory, &shared_->window),
              "MPI_Win_allocate_shared");
    int unit = 0;
    check_mpi(MPI_Win_shared_query(shared_->window, 0, &bytes, &unit, &memory), "MPI_Win_shared_query");
    void* const statuses = static_cast<std::byte*>(memory) + kBoardOffset;
    if (local_rank_ == 0) {
        new (memory) std::atomic<int>(0);
        for (size_t i = 0; i < ranks; ++i) new (static_cast<RankStatus*>(statuses) + i) RankStatus;
    }
    shared_->claim = static_cast<std::atomic<int>*>(memory);
    board_ = {{static_cast<RankStatus*>(statuses), ranks}, static_cast<size_t>(local_rank_)};
    check_mpi(MPI_Barrier(shared_->host), "MPI_Barrier");
}

Launch::Launch(int* argc, char*** argv) : board_{{&alone_, 1}, 0} {
    int const promised = ranks_promised();
    if (local_rank_promised() == 0) remove_leftovers();
    if (promised > 0) {
        // Every call comes from one thread, but for the MPI_Abort of a watchdog while that thread hangs in a
        // collective; Open MPI serves it at any level, and MULTIPLE would put locks on every message.
        int provided = MPI_THREAD_SINGLE;
        check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
        owns_mpi_ = true;
        if (provided < MPI_THREAD_FUNNELED) {
            fail(Category::communication, "this MPI library does not support programs with threads");
        }
        share_memory();
        world_ = make_mpi_world(kMpiPieceBytes, &board_.mine());
        if (world_->size() < promised) {
            fail(Category::communication,
                 "the launcher started {} ranks, but the MPI library sees {}: `mpirun` belongs to another MPI library",
                 promised, world_->size());
        }
    } else {
        world_ = make_single_host_comm();
    }
    board_.mine().rank = world_->rank();
    board_.mine().pid = ::getpid();
    board_.mine().beat = steady_nanoseconds();
    world_->barrier();  // the board shows every process
}

Launch::~Launch() {
    board_.mine().leaving = true;
    if (!owns_mpi_ || std::uncaught_exceptions() > 0) return;
    world_->barrier();  // nobody frees the board while others may still look at it
    world_.reset();
    MPI_Win_free(&shared_->window);
    MPI_Comm_free(&shared_->host);
    MPI_Finalize();
}

int Launch::claim_end(int exit_code) noexcept {
    int earlier = 0;
    if (shared_ != nullptr) shared_->claim->compare_exchange_strong(earlier, exit_code);
    return earlier;
}

void Launch::abort(int exit_code, std::string const& message, std::chrono::seconds patience) noexcept {
    board_.mine().leaving = true;
    if (claim_end(exit_code) == 0) {
        say(message);
        std::this_thread::sleep_for(patience);
        if (owns_mpi_) {
            // MPI_Abort talks to a launcher that may be dead or stopped.
            end_after(kAbortPatience, exit_code);
            MPI_Abort(MPI_COMM_WORLD, exit_code);
        }
    } else {
        std::this_thread::sleep_for(patience + kAbortPatience);
    }
    _exit(exit_code);
}

void Launch::leave(int exit_code, std::string const& message) noexcept {
    board_.mine().leaving = true;
    int const earlier = claim_end(exit_code);
    if (earlier == 0) say(message);
    board_.mine().left = true;
    _exit(earlier == 0 ? exit_code : earlier);
}

void Launch::end_before_joining(int exit_code, std::string const& message, std::chrono::seconds patience) noexcept {
    bool const first = local_rank_promised() == 0;
    if (!first) std::this_thread::sleep_for(patience);
    if (first || patience.count() > 0) say(message);
    _exit(exit_code);
}

}  // namespace perigee
