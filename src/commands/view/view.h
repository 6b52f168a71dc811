// What `perigee view` shows of one global batch: its samples as text, token by token, and how far the gradient of their
// loss spreads on its way down through the layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/session.h"

namespace perigee::view {

struct Token {
    std::string text;  ///< printable; ids for data that is no text
    int32_t id = 0;
    float weight = 0;   ///< of the loss on predicting this token; 0 for the first of a document, which nothing predicts
    int64_t block = 0;  ///< of MoBA, in its document
    /// Layers that learn from this token: the keys and values of the lowest `depth` layers get gradient here. 0 for a
    /// document's last target, which is predicted but never read.
    int64_t depth = 0;
    bool is_read = true;  ///< false for such a target
};

struct Sample {
    int64_t number = 0;  ///< of the data source
    int64_t tokens = 0;
    int64_t loss_tokens = 0;
    std::vector<std::vector<Token>> documents;
};

struct Layer {
    bool is_full = false;
    int64_t reached = 0;  ///< tokens that receive gradient as they enter the layer
};

struct View {
    int64_t step = 0;                     ///< counted from 1, as in the log
    std::string data;                     ///< what the source says of itself
    std::string weights;                  ///< where they came from
    int64_t tokens = 0, loss_tokens = 0;  ///< of the whole step
    double loss_weight = 0;
    int64_t block_size = 0;
    std::vector<Layer> layers;  ///< from the first to the last
    std::vector<Sample> samples;
};

/// Of the global batch of step `step`, which begins with sample `first`: the first `samples` samples in full, counts
/// over all. With `weights`, MoBA's choices are those of the session's weights; without, nothing is known of layers.
View make_view(Session& session, int64_t step, int64_t first, int64_t samples, bool weights);

/// For a terminal; without `color`, tokens with loss stand in double brackets.
std::string draw_terminal(View const& view, bool color);
/// A self-contained page.
std::string draw_html(View const& view);

}  // namespace perigee::view
