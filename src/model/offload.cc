#include "model/offload.h"

namespace perigee {

Offload::Offload(Device& device, int64_t layers, int64_t offloaded)
    : device_(&device), layers_(static_cast<size_t>(layers)) {
    auto const taking = layers_taking_turns(layers, offloaded);
    for (size_t turn = 0; turn + 2 < taking.size(); ++turn) {
        layers_[static_cast<size_t>(taking[turn])].waits = true;
        layers_[static_cast<size_t>(taking[turn + 2])].before = static_cast<size_t>(taking[turn]);
    }
}

void Offload::begin_forward(size_t layer) {
    if (auto const earlier = layers_[layer].before) device_->queue().wait(layers_[*earlier].copied);
}

void Offload::end_forward(size_t layer, std::span<TensorView const> kept) {
    if (layers_[layer].waits) copy(layers_[layer], kept, Way::out);
}

void Offload::begin_backward(size_t layer) {
    if (layers_[layer].waits) device_->queue().wait(layers_[layer].copied);
}

std::optional<size_t> Offload::before(size_t layer) const { return layers_[layer].before; }

void Offload::bring_back(size_t layer, std::span<TensorView const> kept) { copy(layers_[layer], kept, Way::in); }

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
