#include "device/trace.h"

#include <exception>
#include <utility>

#include "device/queue.h"

namespace perigee {

void Trace::start(Queue& queue) {
    noted_.clear();
    start_ = queue.stamp();
    running_ = true;
}

size_t Trace::begin(Queue& queue, std::string name) {
    noted_.push_back({std::move(name), queue.device().phases().now(), &queue, queue.stamp(), {}});
    return noted_.size() - 1;
}

void Trace::end(size_t span, Queue& queue) { noted_[span].end = queue.stamp(); }

std::vector<Trace::Span> Trace::stop(Queue& queue) {
    running_ = false;
    queue.device().synchronize();
    std::vector<Span> spans;
    for (Noted const& noted : std::exchange(noted_, {}))
        spans.push_back({.name = noted.name,
                         .queue = noted.queue->name(),
                         .phase = noted.phase,
                         .begin = noted.begin.seconds_since(start_),
                         .seconds = noted.end.seconds_since(noted.begin)});
    return spans;
}

InSpan::InSpan(Queue& queue, std::string name) : queue_(queue) {
    queue_.device().begin_range(name.c_str());
    number_ = queue_.device().trace().begin(queue_, std::move(name));
}

InSpan::~InSpan() {
    try {
        queue_.device().trace().end(number_, queue_);
    } catch (std::exception const&) {
        // The GPU has failed; whoever waits for it next says so.
    }
    queue_.device().end_range();
}

}  // namespace perigee
