// What every rank of a host is doing, in memory that all of them can read: when one hangs or dies, the others can say
// which, and where. Written with plain atomic stores, so that keeping it up costs nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

namespace perigee {

enum class Collective : int32_t {
    none,
    all_reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
    exchange,
    group,
    broadcast,
    barrier,
    split
};
char const* to_string(Collective collective) noexcept;

/// Who takes part: all ranks, or those that differ in these coordinates of the mesh alone.
enum class Axis : int32_t { all, data, context, tensor, data_context, pipeline, expert };
/// "data x context"
char const* to_string(Axis axis) noexcept;

/// Nanoseconds of a clock that all processes of a host share and that nobody can set.
int64_t steady_nanoseconds() noexcept;

/// One collective of a rank.
struct NumberedCollective {
    int64_t sequence = 0;  ///< 0: none
    Collective collective = Collective::none;
    Axis axis = Axis::all;
};
/// "tensor all_gather #12"
std::string to_string(NumberedCollective const& which);

/// One that one thread writes and others read.
class SharedCollective {
  public:
    void store(NumberedCollective const& which) noexcept {
        collective_.store(which.collective, std::memory_order_relaxed);
        axis_.store(which.axis, std::memory_order_relaxed);
        sequence_.store(which.sequence, std::memory_order_release);
    }
    NumberedCollective load() const noexcept {
        int64_t const sequence = sequence_.load(std::memory_order_acquire);
        return {sequence, collective_.load(std::memory_order_relaxed), axis_.load(std::memory_order_relaxed)};
    }

  private:
    std::atomic<int64_t> sequence_{0};
    std::atomic<Collective> collective_{Collective::none};
    std::atomic<Axis> axis_{Axis::all};
};

struct RankStatus {
    std::atomic<int32_t> rank{0};  ///< in the world
    std::atomic<int32_t> pid{0};
    std::atomic<bool> leaving{false};  ///< on its way out, in order or with an error of its own
    std::atomic<bool> left{false};     ///< ended without the others, which cannot go on: they end as well
    std::atomic<int64_t> beat{0};      ///< last sign of life, in steady_nanoseconds()

    /// The last collective begun. Sequence numbers count all groups; all ranks call the same collectives in the same
    /// order, so that numbers compare.
    SharedCollective begun;
    SharedCollective inside;     ///< the one that has not returned yet
    SharedCollective on_device;  ///< the first of those queued on a GPU that is not done yet
    /// The collective that this rank waits in, as far as is known.
    NumberedCollective waits_in() const noexcept;

    std::atomic<int32_t> section{0};  ///< of the run, as the layer that runs it counts them
    std::atomic<int64_t> step{0};
};

struct HostBoard {
    std::span<RankStatus> ranks;  ///< by local rank
    size_t own = 0;

    RankStatus& mine() const { return ranks[own]; }
};

/// The next collective of this rank begins: it shows on the board, if there is one.
inline NumberedCollective begin_collective(RankStatus* status, Collective collective, Axis axis) noexcept {
    if (status == nullptr) return {};
    NumberedCollective const next{status->begun.load().sequence + 1, collective, axis};
    status->begun.store(next);
    return next;
}

/// Marks a collective on the board while it lives. `status` may be null.
class InCollective {
  public:
    InCollective(RankStatus* status, Collective collective, Axis axis) noexcept : status_(status) {
        if (status_ != nullptr) status_->inside.store(begin_collective(status, collective, axis));
    }
    ~InCollective() {
        if (status_ != nullptr) status_->inside.store({});
    }
    InCollective(InCollective const&) = delete;
    InCollective& operator=(InCollective const&) = delete;

  private:
    RankStatus* status_;
};

}  // namespace perigee
