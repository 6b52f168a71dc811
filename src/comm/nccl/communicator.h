// One NCCL communicator. A call queues its collective and returns; only the first between two ranks, which connects
// them, waits for the other rank, and a watchdog ends the process where that rank never comes. NCCL's codes become
// errors. Its mode that never waits starts a thread for each call: 0.12 ms where 0.02 are enough.
#pragma once

#include <nccl.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "comm/host_board.h"

namespace perigee {

/// One thread uses it; any thread may call failure() and abort().
class Communicator {
  public:
    /// Of `size` ranks that know the same id.
    Communicator(ncclUniqueId const& id, int size, int rank, Axis axis);
    /// A part of `whole`, as HostComm::split.
    Communicator(Communicator& whole, int color, int key, Axis axis);
    /// In order, with all other ranks; while an exception is on its way out they may never come, and it is left alone.
    ~Communicator();
    Communicator(Communicator const&) = delete;
    Communicator& operator=(Communicator const&) = delete;

    /// Makes a call of NCCL. Throws Category::communication.
    void call(char const* what, std::function<ncclResult_t(ncclComm_t)> const& body);
    /// The same between ncclGroupStart and ncclGroupEnd, which a call() is to bring.
    void call_in_group(char const* what, std::function<ncclResult_t(ncclComm_t)> const& body) const;
    /// What has gone wrong since; empty where nothing has, and while a call is being made, which says so itself.
    std::string failure() const;
    void abort() noexcept;

  private:
    [[noreturn]] void fail_with(ncclResult_t code, char const* what) const;

    /// Held through a call: nobody asks NCCL about a communicator that it works on.
    mutable std::mutex calling_;
    std::atomic<ncclComm_t> comm_ = nullptr;
    Axis axis_;
};

}  // namespace perigee
