// Events: points in the queues of a device (device/queue.h).
#pragma once

#include <memory>
#include <utility>

namespace perigee {

/// A point in a queue, reached when everything queued before it is done. A value; an empty one is always reached.
class Event {
  public:
    /// What a kind of device knows of a point.
    class Point {
      public:
        virtual ~Point() = default;
        virtual bool reached() const noexcept = 0;
    };

    Event() = default;
    explicit Event(std::shared_ptr<Point const> point) : point_(std::move(point)) {}
    /// Any thread may ask; does not wait.
    bool reached() const noexcept { return !point_ || point_->reached(); }
    Point const* point() const { return point_.get(); }

  private:
    std::shared_ptr<Point const> point_;
};

}  // namespace perigee
