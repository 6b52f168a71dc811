#include "model/reach.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "kernels/moba_gate/options.h"

namespace perigee {

BlockChoices::BlockChoices(std::span<int32_t const> cu_seqlens, int64_t block_size, int64_t heads)
    : cu_seqlens_(cu_seqlens.begin(), cu_seqlens.end()), block_size_(block_size), heads_(heads) {
    for (size_t i = 1; i < cu_seqlens.size(); ++i)
        blocks_ = std::max(blocks_, moba_blocks(cu_seqlens[i] - cu_seqlens[i - 1], block_size));
}

void BlockChoices::add_full_layer() {
    heads_LTN_.emplace_back();
    group_blocks_.emplace_back();
}

void BlockChoices::add_sparse_layer(std::vector<int32_t> heads_TN, GroupBlocks of_groups) {
    PERIGEE_CHECK(std::ssize(heads_TN) == tokens() * blocks(), "choices of {} tokens among {} blocks in {} values",
                  tokens(), blocks(), heads_TN.size());
    heads_LTN_.push_back(std::move(heads_TN));
    group_blocks_.push_back(of_groups);
}

std::vector<std::vector<uint8_t>> BlockChoices::reached(std::span<float const> weights_T) const {
    PERIGEE_CHECK(std::ssize(weights_T) == tokens(), "{} weights for {} tokens", weights_T.size(), tokens());
    std::vector<uint8_t> now(weights_T.size());
    std::ranges::transform(weights_T, now.begin(), [](float w) { return static_cast<uint8_t>(w > 0); });
    std::vector<std::vector<uint8_t>> all(heads_LTN_.size());
    for (int64_t layer = layers(); layer-- > 0;) {
        for (size_t i = 1; i < cu_seqlens_.size(); ++i) spread(layer, {cu_seqlens_[i - 1], cu_seqlens_[i]}, now);
        all[static_cast<size_t>(layer)] = now;
    }
    return all;
}

/// From the tokens of one document that are reached above the layer to those that are below it.
void BlockChoices::spread(int64_t layer, Document document, std::vector<uint8_t>& reached) const {
    auto const [begin, end] = document;
    int64_t const size = is_full(layer) ? std::max<int64_t>(end - begin, 1) : block_size_;
    std::vector<int64_t> until(static_cast<size_t>(moba_blocks(end - begin, size)), begin);  // of each block
    for (int64_t token = begin; token < end; ++token) {
        if (reached[static_cast<size_t>(token)] == 0) continue;
        until[static_cast<size_t>((token - begin) / size)] = token + 1;
        if (is_full(layer)) continue;
        int32_t const* const heads_N = heads_LTN_[static_cast<size_t>(layer)].data() + token * blocks_;
        for (size_t block = 0; block < until.size(); ++block)
            if (heads_N[block] > 0) until[block] = begin + (static_cast<int64_t>(block) + 1) * size;
    }
    for (size_t block = 0; block < until.size(); ++block)
        for (int64_t token = begin + static_cast<int64_t>(block) * size; token < until[block]; ++token)
            reached[static_cast<size_t>(token)] = 1;
}

BlockChoices::Share BlockChoices::attended(int64_t layer, int64_t from, std::span<int64_t const> places) const {
    auto const after = std::upper_bound(cu_seqlens_.begin(), cu_seqlens_.end(), from);
    PERIGEE_CHECK(after != cu_seqlens_.begin() && after != cu_seqlens_.end(), "token {} of {}", from, tokens());
    int64_t const begin = *std::prev(after);
    std::set<int64_t> needed;
    for (int64_t const place : places) {
        PERIGEE_CHECK(begin <= place && place <= from, "token {} cannot look at {}", from, place);
        needed.insert((place - begin) / block_size_);
    }
    Share share{.chosen = 0, .needed = heads_ * std::ssize(needed)};
    for (int64_t const block : needed) {
        bool const always = is_full(layer) || block == (from - begin) / block_size_;
        auto const at = static_cast<size_t>(from * blocks_ + block);
        share.chosen += always ? heads_ : heads_LTN_[static_cast<size_t>(layer)][at];
    }
    return share;
}

std::vector<std::vector<double>> BlockChoices::map(int64_t layer, int64_t most) const {
    PERIGEE_CHECK(!is_full(layer) && blocks_ > 0, "layer {} has no choices", layer);
    int64_t const per_cell = blocks_per_cell(most);
    auto const cells = static_cast<size_t>((blocks_ + per_cell - 1) / per_cell);
    std::vector<std::vector<double>> attended(cells, std::vector<double>(cells)), possible = attended;
    for (size_t i = 1; i < cu_seqlens_.size(); ++i) {
        for (int64_t token = cu_seqlens_[i - 1]; token < cu_seqlens_[i]; ++token) {
            int32_t const* const heads_N = heads_LTN_[static_cast<size_t>(layer)].data() + token * blocks_;
            int64_t const own = (token - cu_seqlens_[i - 1]) / block_size_;
            auto const row = static_cast<size_t>(own / per_cell);
            for (int64_t block = 0; block <= own; ++block) {
                auto const column = static_cast<size_t>(block / per_cell);
                attended[row][column] += static_cast<double>(block == own ? heads_ : heads_N[block]);
                possible[row][column] += static_cast<double>(heads_);
            }
        }
    }
    for (size_t row = 0; row < cells; ++row)
        for (size_t column = 0; column <= row; ++column)
            if (possible[row][column] > 0) attended[row][column] /= possible[row][column];
    return attended;
}

}  // namespace perigee
