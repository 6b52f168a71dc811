// What every rank of a host is doing, in memory that all of them can read: when one hangs or dies, the others can say
// which, and where. Written with plain atomic stores, so that keeping it up costs nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

namespace perigee {

enum class Collective : int32_t { none, all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, barrier, split };
char const* to_string(Collective collective) noexcept;

/// Nanoseconds of a clock that all processes of a host share and that nobody can set.
int64_t steady_nanoseconds() noexcept;

struct RankStatus {
    std::atomic<int32_t> rank{0};  ///< in the world
    std::atomic<int32_t> pid{0};
    std::atomic<bool> leaving{false};  ///< on its way out, in order or with an error of its own
    std::atomic<bool> left{false};     ///< ended without the others, which cannot go on: they end as well
    std::atomic<int64_t> beat{0};      ///< last sign of life, in steady_nanoseconds()

    /// Collectives begun, over all groups. All ranks call the same ones in the same order, so that numbers compare.
    std::atomic<int64_t> sequence{0};
    std::atomic<Collective> collective{Collective::none};  ///< the last one begun
    std::atomic<bool> inside{false};                       ///< it has not returned yet

    std::atomic<int32_t> section{0};  ///< of the run, as the layer that runs it counts them
    std::atomic<int64_t> step{0};
};

struct HostBoard {
    std::span<RankStatus> ranks;  ///< by local rank
    size_t own = 0;

    RankStatus& mine() const { return ranks[own]; }
};

/// Marks a collective on the board while it lives. `status` may be null.
class InCollective {
  public:
    InCollective(RankStatus* status, Collective collective) noexcept : status_(status) {
        if (status_ == nullptr) return;
        status_->collective.store(collective, std::memory_order_relaxed);
        status_->sequence.fetch_add(1, std::memory_order_relaxed);
        status_->inside.store(true, std::memory_order_release);
    }
    ~InCollective() {
        if (status_ != nullptr) status_->inside.store(false, std::memory_order_release);
    }
    InCollective(InCollective const&) = delete;
    InCollective& operator=(InCollective const&) = delete;

  private:
    RankStatus* status_;
};

}  // namespace perigee
