#include "comm/journal.h"

#include <utility>

namespace perigee {

void Journal::drop_done() {
    while (!entries_.empty() && entries_.front().done.reached()) entries_.pop_front();
}

void Journal::add(NumberedCollective const& which, Event done) {
    std::scoped_lock const lock(mutex_);
    drop_done();
    entries_.push_back({which, std::move(done)});
}

NumberedCollective Journal::first() {
    std::scoped_lock const lock(mutex_);
    drop_done();
    return entries_.empty() ? NumberedCollective{} : entries_.front().which;
}

}  // namespace perigee
