#include "train/profile.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "device/queue.h"

namespace perigee {

namespace {

/// The whole file. A track for each queue, and `rank` as the process; an event's category is its phase.
std::string trace_text(std::vector<Trace::Span> const& spans, int rank) {
    using Json = nlohmann::json;
    constexpr double kMicroseconds = 1e6;
    std::vector<std::string> queues;
    Json events = Json::array(
        {{{"ph", "M"}, {"name", "process_name"}, {"pid", rank}, {"args", {{"name", fmt::format("rank {}", rank)}}}}});
    for (Trace::Span const& span : spans) {
        auto const known = std::ranges::find(queues, span.queue);
        auto const track = known - queues.begin();
        if (known == queues.end()) {
            queues.push_back(span.queue);
            events.push_back({{"ph", "M"},
                              {"name", "thread_name"},
                              {"pid", rank},
                              {"tid", track},
                              {"args", {{"name", span.queue}}}});
        }
        events.push_back({{"ph", "X"},
                          {"name", span.name},
                          {"cat", to_string(span.phase)},
                          {"pid", rank},
                          {"tid", track},
                          {"ts", span.begin * kMicroseconds},
                          {"dur", span.seconds * kMicroseconds}});
    }
    return Json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump();
}

}  // namespace

Profile::Profile(ProfileOptions const& options, Device& device, FileSystem& files, Path const& folder, int rank)
    : options_(options),
      device_(&device),
      files_(&files),
      path_(folder / fmt::format("trace_rank_{}.json", rank)),
      rank_(rank) {}

void Profile::before_step(int64_t step) {
    if (!traces()) return;
    if (taken_ == options_.first) device_->trace().start(device_->queue());
    span_ = device_->trace().begin(device_->queue(), fmt::format("step {}", step));
}

void Profile::after_step() {
    bool const traced = traces();
    if (traced) device_->trace().end(span_, device_->queue());
    ++taken_;
    if (traced && !traces()) write();
}

void Profile::finish() {
    if (options_.steps == 0 || taken_ >= options_.first + options_.steps) return;
    if (taken_ > options_.first) return write();
    if (rank_ == 0)
        log::warn("no step was traced: this job took {}, and the first traced one follows after {} (train.profile)",
                  taken_, options_.first);
}

void Profile::write() {
    auto const spans = device_->trace().stop(device_->queue());
    try {
        files_->replace_text(path_, trace_text(spans, rank_));
        log::info("{} steps traced: {}", taken_ - options_.first, path_.string());
    } catch (std::exception const& e) {
        log::warn("no trace: {}", e.what());
    }
}

}  // namespace perigee
