// Rotary position embedding: the frequencies a model rotates with, under each way of stretching them to longer
// contexts. Source: Hugging Face transformers, modeling_rope_utils.py.
#pragma once

#include <vector>

#include "model/options.h"

namespace perigee {

struct Rope {
    std::vector<double> inverse_frequencies;  ///< head_size / 2 values, radians per position
    double magnitude = 1;                     ///< factor on cos and sin: YaRN's attention factor
};
Rope make_rope(ModelOptions const& options);

}  // namespace perigee
