// Draws a token from logits on the host. Reference for SampleTokens.
#pragma once

#include <span>
#include <vector>

#include "kernels/sampling/draw_rule.h"

namespace perigee {

/// Inverse transform sampling over tokens sorted by probability; ties put higher ids first. `seen`: ids with repetition
/// penalty, each once. Throws Category::numeric if a logit is not a number.
int32_t draw_token(std::span<float const> logits, DrawRule const& rule, std::span<int32_t const> seen = {});

/// log(sum of e^logit).
double log_sum(std::span<float const> logits);

}  // namespace perigee
