// How fast a GPU could be, by its name: what MFU is measured against.
#pragma once

#include <optional>
#include <string_view>

namespace perigee {

/// Peak of dense bf16 products with sums in fp32, in FLOP/s, by NVIDIA's data sheets; nothing for a device that is not
/// listed, as every CPU. `device` is Device::name().
std::optional<double> peak_bf16_flops(std::string_view device);

}  // namespace perigee
