// Activations of some of a model's layers wait for their backward in memory of the host. On the device these layers and
// two more take turns in two slots (layers_taking_turns): while other layers compute, a lane copies a layer's
// activations out in the forward and back in the backward.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "device/queue.h"
#include "model/memory_policy.h"
#include "tensor/tensor.h"

namespace perigee {

inline constexpr char const* kOffloadLane = "offload";

class Offload {
  public:
    /// Of `layers` layers `offloaded` wait on the host.
    Offload(Device& device, int64_t layers, int64_t offloaded);

    // Around what is queued in the compute queue for a layer. `kept` is what the layer keeps in its slot.
    /// What is queued from now on may write into the layer's slot.
    void begin_forward(size_t layer);
    void end_forward(size_t layer, std::span<TensorView const> kept);
    /// What is queued from now on finds the layer's activations in its slot.
    void begin_backward(size_t layer);
    /// The layer that had the slot of `layer` before it and waits on the host.
    std::optional<size_t> before(size_t layer) const;
    /// Starts copying the layer's activations from the host to its slot, whose last use must be queued already.
    void bring_back(size_t layer, std::span<TensorView const> kept);

    int64_t bytes() const;  ///< of the host, taken so far

  private:
    struct Layer {
        std::optional<size_t> before;
        bool waits = false;  ///< on the host
        HostBuffer memory = {};
        Event copied = {};  ///< out in the forward, in in the backward
    };
    enum class Way { out, in };
    /// On the lane, after all that is queued in the compute queue now.
    void copy(Layer& layer, std::span<TensorView const> kept, Way way);

    Device* device_;
    std::vector<Layer> layers_;
};

}  // namespace perigee
