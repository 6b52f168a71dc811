// Drawing a token from logits on the host: the reference of SampleTokens.
#pragma once

#include <span>
#include <vector>

#include "kernels/sampling/draw_rule.h"

namespace perigee {

/// By the inverse of the distribution function, likelier tokens first, and of equally likely ones the higher ids.
/// `seen`: what the repetition penalty falls on, each once. Throws Category::numeric for logits that are not numbers.
int32_t draw_token(std::span<float const> logits, DrawRule const& rule, std::span<int32_t const> seen = {});

/// log of the sum of e^logit.
double log_sum(std::span<float const> logits);

}  // namespace perigee
