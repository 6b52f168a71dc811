// From a stretch of tokens to one sample of a packed batch: targets, loss weights, positions and document borders.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/batch.h"

namespace perigee {

/// S + 1 consecutive tokens: S inputs, each predicting its successor.
struct Stretch {
    std::vector<int32_t> tokens;
    std::vector<float> weights;            ///< per token: how much it counts as a target
    std::vector<int64_t> document_begins;  ///< places in (0, S] where another document begins, increasing
};

/// Appends the stretch. With `document_mask` each piece of a document is a segment of its own with positions from 0,
/// and a target in another document than its input has weight 0; without it the stretch is one segment.
void append_stretch(Stretch const& stretch, bool document_mask, Batch& batch);

/// Appends a whole document of n + 1 tokens as a segment of n places. `weights` has one entry per token.
void append_document(std::vector<int32_t> const& tokens, std::vector<float> const& weights, Batch& batch);

/// One document of these tokens, to go on from: nothing carries loss.
Batch unfinished_document(std::vector<int32_t> tokens);

/// Appends `places` places without loss that no document sees.
void append_padding(int64_t places, Batch& batch);

}  // namespace perigee
