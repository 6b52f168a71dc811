#include "model/offload.h"

namespace perigee {

void Offload::begin_forward(size_t layer) {
    if (layer >= 2 && holds(layer - 2)) device_->queue().wait(layers_[layer - 2].copied);
}

void Offload::end_forward(size_t layer, std::span<TensorView const> kept) {
    if (holds(layer)) copy(layers_[layer], kept, Way::out);
}

void Offload::begin_backward(size_t layer) {
    if (holds(layer)) device_->queue().wait(layers_[layer].copied);
}

void Offload::end_backward(size_t layer, std::span<TensorView const> kept) {
    if (holds(layer - 2)) copy(layers_[layer - 2], kept, Way::in);
}

void Offload::copy(Layer& layer, std::span<TensorView const> kept, Way way) {
    size_t bytes = 0;
    for (TensorView const& view : kept) bytes += static_cast<size_t>(view.bytes());
    if (layer.memory.bytes() < bytes) layer.memory = HostBuffer(*device_, bytes);
    Queue& lane = device_->lane(kOffloadLane, Priority::low);
    lane.wait(device_->queue().record());
    auto* host = static_cast<std::byte*>(layer.memory.data());
    for (TensorView const& view : kept) {
        auto const size = static_cast<size_t>(view.bytes());
        if (way == Way::out)
            lane.copy(host, view.data, size);
        else
            lane.copy(view.data, host, size);
        host += size;
    }
    layer.copied = lane.record();
    InFlight& in_flight = device_->in_flight();
    for (TensorView const& view : kept) in_flight.add(view.data, static_cast<size_t>(view.bytes()), layer.copied);
    in_flight.add(layer.memory.data(), bytes, layer.copied);
}

int64_t Offload::bytes() const {
    size_t sum = 0;
    for (Layer const& layer : layers_) sum += layer.memory.bytes();
    return static_cast<int64_t>(sum);
}

}  // namespace perigee
