// From views to the pointers that kernels take.
#pragma once

#include "kernels/quantize/quantize.h"
#include "tensor/quantized.h"

namespace perigee {

/// Null for an empty view: a part that is switched off.
template <class T, class View>
auto* optional(View const& view) {
    return view.empty() ? nullptr : view.template as<T>();
}

inline kernels::Quantized quantized(QuantTensor const& x) {
    return {.bytes = optional<uint8_t>(x.values), .scales = optional<float>(x.scales)};
}

}  // namespace perigee
