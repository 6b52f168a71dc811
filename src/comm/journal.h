// What a rank has queued on its device and is not known to be done, for whoever looks why a job stands still.
#pragma once

#include <deque>
#include <mutex>

#include "comm/host_board.h"
#include "device/event.h"

namespace perigee {

/// Any thread may call any member.
class Journal {
  public:
    /// `which` is done when `done` is reached. Numbers ascend.
    void add(NumberedCollective const& which, Event done);
    /// The first that is not done; sequence 0 where all are.
    NumberedCollective first();

  private:
    struct Entry {
        NumberedCollective which;
        Event done;
    };
    void drop_done();

    std::mutex mutex_;
    std::deque<Entry> entries_;
};

}  // namespace perigee
