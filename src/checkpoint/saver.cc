#include "checkpoint/saver.h"

#include <utility>

namespace perigee {

Saver::~Saver() {
    if (writer_.joinable()) writer_.join();
}

void Saver::begin(RunState const& state, std::vector<StoredTensor> const& parts) {
    PERIGEE_CHECK(!in_flight(), "step {} is still being saved", step());
    save_ = std::make_unique<CheckpointSave>(*files_, *world_, root_, state, stored_bytes(parts), keep_);
    written_ = false;
    writer_ = std::thread([this, save = save_.get(), copied = copy(parts)] {
        save->write(copied);
        written_ = true;
    });
}

void Saver::finish() {
    PERIGEE_CHECK(in_flight(), "nothing is being saved");
    writer_.join();
    std::exchange(save_, nullptr)->commit();
}

std::vector<StoredTensor> Saver::copy(std::vector<StoredTensor> const& parts) {
    size_t bytes = 0;
    for (StoredTensor const& part : parts) bytes += static_cast<size_t>(part.values.bytes());
    if (bytes > memory_.bytes()) {
        memory_ = {};  // never both at once
        memory_ = HostBuffer(*device_, bytes);
    }
    std::vector<StoredTensor> copied = parts;
    auto* to = static_cast<std::byte*>(memory_.data());
    for (StoredTensor& part : copied) {
        device_->copy(to, part.values.data, static_cast<size_t>(part.values.bytes()));
        part.values.data = to;
        to += part.values.bytes();
    }
    return copied;
}

}  // namespace perigee
