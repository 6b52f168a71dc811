#include "comm/launch.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include "comm/mpi/check.h"
#include "comm/mpi/mpi_comm.h"

namespace perigee {

namespace {

using detail::check_mpi;

/// How long a failing rank that is not the one to speak waits to be ended with the job.
constexpr std::chrono::seconds kAbortPatience{5};

int ranks_promised_by(char const* variable) {
    char const* value = std::getenv(variable);
    return value != nullptr ? std::max(1, std::atoi(value)) : 0;
}

/// Ranks the launcher says it started: 0 when there is no launcher, 1 where it does not say how many.
int ranks_promised() {
    for (char const* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
        if (int const ranks = ranks_promised_by(variable); ranks > 0) return ranks;
    }
    if (std::getenv("PMIX_RANK") != nullptr) return 1;
    if (ranks_promised_by("SLURM_STEP_NUM_TASKS") > 1) {
        fail(Category::communication, "srun started several tasks without telling MPI: use `srun --mpi=pmix`");
    }
    return 0;
}

/// A word of memory shared by the processes of a host: 0 until one of them claims the right to speak for all.
std::atomic<int>* claim_word(MPI_Comm host, int local_rank, MPI_Win& window) {
    void* word = nullptr;
    MPI_Aint bytes = local_rank == 0 ? sizeof(std::atomic<int>) : 0;
    check_mpi(MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, host, &word, &window), "MPI_Win_allocate_shared");
    int unit = 0;
    check_mpi(MPI_Win_shared_query(window, 0, &bytes, &unit, &word), "MPI_Win_shared_query");
    if (local_rank == 0) new (word) std::atomic<int>(0);
    check_mpi(MPI_Barrier(host), "MPI_Barrier");
    return static_cast<std::atomic<int>*>(word);
}

}  // namespace

struct Launch::Claim {
    MPI_Comm host = MPI_COMM_NULL;
    MPI_Win window = MPI_WIN_NULL;
    std::atomic<int>* word = nullptr;
};

Launch::Launch(int* argc, char*** argv) {
    int const promised = ranks_promised();
    if (promised == 0) {
        world_ = make_single_comm();
        return;
    }
    // Every call comes from one thread, but for the MPI_Abort of a watchdog while that thread hangs in a collective;
    // Open MPI serves it at any level, and MULTIPLE would put locks on every message.
    int provided = MPI_THREAD_SINGLE;
    check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    owns_mpi_ = true;
    world_ = make_mpi_world();
    if (provided < MPI_THREAD_FUNNELED) {
        fail(Category::communication, "this MPI library does not support programs with threads");
    }
    if (world_->size() < promised) {
        fail(Category::communication,
             "the launcher started {} ranks, but the MPI library sees {}: `mpirun` belongs to another MPI library",
             promised, world_->size());
    }

    claim_ = std::make_unique<Claim>();
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &claim_->host),
              "MPI_Comm_split_type");
    check_mpi(MPI_Comm_rank(claim_->host, &local_rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(claim_->host, &local_size_), "MPI_Comm_size");
    claim_->word = claim_word(claim_->host, local_rank_, claim_->window);
}

Launch::~Launch() {
    if (!owns_mpi_ || std::uncaught_exceptions() > 0) return;
    world_.reset();
    MPI_Win_free(&claim_->window);
    MPI_Comm_free(&claim_->host);
    MPI_Finalize();
}

void Launch::abort(int exit_code, std::string const& message) noexcept {
    int unclaimed = 0;
    bool const speaks = claim_ == nullptr || claim_->word->compare_exchange_strong(unclaimed, 1);
    if (speaks) {
        std::fprintf(stderr, "perigee: %s\n", message.c_str());
        std::fflush(stderr);
        if (owns_mpi_) MPI_Abort(MPI_COMM_WORLD, exit_code);
    } else {
        std::this_thread::sleep_for(kAbortPatience);
    }
    _exit(exit_code);
}

}  // namespace perigee
