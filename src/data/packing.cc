#include "data/packing.h"

#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace perigee {

void append_stretch(Stretch const& stretch, bool document_mask, Batch& batch) {
    auto const length = static_cast<int64_t>(stretch.tokens.size()) - 1;
    PERIGEE_CHECK(length > 0 && stretch.weights.size() == stretch.tokens.size(), "a stretch of {} tokens", length + 1);
    int64_t const start = batch.tokens();
    PERIGEE_CHECK(start + length <= std::numeric_limits<int32_t>::max(), "a batch of {} tokens", start + length);

    batch.ids_T.insert(batch.ids_T.end(), stretch.tokens.begin(), stretch.tokens.end() - 1);
    batch.targets_T.insert(batch.targets_T.end(), stretch.tokens.begin() + 1, stretch.tokens.end());
    batch.weights_T.insert(batch.weights_T.end(), stretch.weights.begin() + 1, stretch.weights.end());
    if (batch.cu_seqlens.empty()) batch.cu_seqlens.push_back(0);

    int64_t piece_begin = 0;
    auto end_piece = [&](int64_t end) {
        for (int64_t i = piece_begin; i < end; ++i) batch.positions_T.push_back(static_cast<int32_t>(i - piece_begin));
        batch.cu_seqlens.push_back(static_cast<int32_t>(start + end));
        piece_begin = end;
    };
    if (document_mask) {
        for (int64_t const begin : stretch.document_begins) {
            batch.weights_T[static_cast<size_t>(start + begin - 1)] = 0.0f;
            if (begin < length) end_piece(begin);
        }
    }
    end_piece(length);
}

void append_document(std::vector<int32_t> const& tokens, std::vector<float> const& weights, Batch& batch) {
    append_stretch({.tokens = tokens, .weights = weights, .document_begins = {}}, /*document_mask=*/true, batch);
}

Batch unfinished_document(std::vector<int32_t> tokens) {
    Batch batch;
    batch.ids_T = std::move(tokens);
    batch.targets_T.assign(batch.ids_T.size(), 0);
    batch.weights_T.assign(batch.ids_T.size(), 0.0f);
    batch.positions_T.resize(batch.ids_T.size());
    std::iota(batch.positions_T.begin(), batch.positions_T.end(), 0);
    batch.cu_seqlens = {0, static_cast<int32_t>(batch.ids_T.size())};
    return batch;
}

void append_padding(int64_t places, Batch& batch) {
    if (places == 0) return;
    auto const size = static_cast<size_t>(places + 1);
    append_document(std::vector<int32_t>(size, 0), std::vector<float>(size, 0.0f), batch);
}

}  // namespace perigee
