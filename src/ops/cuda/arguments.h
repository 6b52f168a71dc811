// From views to the pointers that kernels take.
#pragma once

#include "tensor/tensor.h"

namespace perigee {

/// Null for an empty view: a part that is switched off.
template <class T, class View>
auto* optional(View const& view) {
    return view.empty() ? nullptr : view.template as<T>();
}

}  // namespace perigee
