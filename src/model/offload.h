// Activations of a model's first layers wait for their backward in memory of the host. On the device these layers and
// the two after them take turns in two slots: while a layer computes, a lane copies its predecessor's out in the
// forward, and in the backward the next one's in.
#pragma once

#include <span>
#include <vector>

#include "device/queue.h"
#include "tensor/tensor.h"

namespace perigee {

inline constexpr char const* kOffloadLane = "offload";

class Offload {
  public:
    explicit Offload(Device& device) : device_(&device) {}

    /// So many layers wait on the host; layers 0 to `layers` + 1 share slots, even ones one and odd ones the other.
    void resize(int64_t layers) { layers_.resize(static_cast<size_t>(layers)); }

    // Around what is queued in the compute queue for a layer. `kept` is what the layer keeps in its slot.
    /// What is queued from now on may write into the layer's slot.
    void begin_forward(size_t layer);
    void end_forward(size_t layer, std::span<TensorView const> kept);
    /// What is queued from now on finds the layer's activations in its slot.
    void begin_backward(size_t layer);
    /// The slot is free for layer - 2, which keeps `kept` there.
    void end_backward(size_t layer, std::span<TensorView const> kept);

    int64_t bytes() const;  ///< of the host, taken so far

  private:
    struct Layer {
        HostBuffer memory;
        Event copied;  ///< out in the forward, in in the backward
    };
    bool holds(size_t layer) const { return layer < layers_.size(); }
    enum class Way { out, in };
    /// On the lane, after all that is queued in the compute queue now.
    void copy(Layer& layer, std::span<TensorView const> kept, Way way);

    Device* device_;
    std::vector<Layer> layers_;
};

}  // namespace perigee
