#include "checkpoint/saver.h"

#include <algorithm>
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
    int64_t bytes = 0;
    for (StoredTensor const& part : parts) bytes += part.values.bytes();
    if (bytes > memory_bytes_) {
        memory_.reset();
        memory_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
        memory_bytes_ = bytes;
    }
    std::vector<StoredTensor> copied = parts;
    std::byte* to = memory_.get();
    for (StoredTensor& part : copied) {
        std::copy_n(part.values.data, part.values.bytes(), to);
        part.values.data = to;
        to += part.values.bytes();
    }
    return copied;
}

}  // namespace perigee
