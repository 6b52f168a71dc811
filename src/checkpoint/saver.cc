#include "checkpoint/saver.h"

#include <chrono>
#include <utility>

namespace perigee {

Saver::~Saver() {
    abandoned_ = true;
    if (writer_.joinable()) writer_.join();
}

void Saver::begin(RunState const& state, std::vector<StoredTensor> const& parts) {
    PERIGEE_CHECK(!in_flight(), "step {} is still being saved", step());
    auto save = std::make_unique<CheckpointSave>(*files_, *world_, root_, state, stored_bytes(parts), keep_);
    written_ = false;
    std::vector<StoredTensor> copied_parts = copy(parts);
    Event const copied = device_->is_host() ? Event() : copied_;  // the host has done a copy when it returns
    writer_ = std::thread([this, save = save.get(), parts = std::move(copied_parts), copied] {
        while (!copied.reached()) {
            if (abandoned_) return;  // by a GPU that failed it is never reached
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        save->write(parts);
        written_ = true;
    });
    save_ = std::move(save);
}

void Saver::finish() {
    PERIGEE_CHECK(in_flight(), "nothing is being saved");
    device_->lane(kSaveLane, Priority::low).synchronize();
    writer_.join();
    std::exchange(save_, nullptr)->commit();
}

void Saver::reserve(std::vector<StoredTensor> const& parts) {
    auto const bytes = static_cast<size_t>(value_bytes(parts));
    if (bytes <= memory_.bytes()) return;
    memory_ = {};  // never both at once
    memory_ = HostBuffer(*device_, bytes);
}

std::vector<StoredTensor> Saver::copy(std::vector<StoredTensor> const& parts) {
    reserve(parts);
    Queue& lane = device_->lane(kSaveLane, Priority::low);
    lane.wait(device_->queue().record());
    std::vector<StoredTensor> copied = parts;
    auto* to = static_cast<std::byte*>(memory_.data());
    for (StoredTensor& part : copied) {
        auto const size = static_cast<size_t>(part.values.bytes());
        device_->in_flight().wait(lane, part.values.data, size);  // other lanes' work
        lane.copy(to, part.values.data, size);
        part.values.data = to;
        to += part.values.bytes();
    }
    copied_ = lane.record();
    return copied;
}

}  // namespace perigee
