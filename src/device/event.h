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
        /// Seconds from `earlier` to here, where both were stamped (Queue::stamp) and are reached; else 0.
        virtual double seconds_since(Point const& /*earlier*/) const { return 0; }
    };

    Event() = default;
    explicit Event(std::shared_ptr<Point const> point) : point_(std::move(point)) {}
    /// Any thread may ask; does not wait.
    bool reached() const noexcept { return !point_ || point_->reached(); }
    double seconds_since(Event const& earlier) const {
        return point_ && earlier.point_ ? point_->seconds_since(*earlier.point_) : 0;
    }
    Point const* point() const { return point_.get(); }

  private:
    std::shared_ptr<Point const> point_;
};

}  // namespace perigee
