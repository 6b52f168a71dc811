// A micro-batch of random tokens, in documents of full length, whose every token carries loss.
#pragma once

#include "base/philox.h"
#include "tensor/batch.h"
#include "train/options.h"

namespace perigee {

inline Batch random_batch(RunOptions const& o, uint64_t index) {
    Philox const random(1, Purpose::mock_data, index);
    int64_t const length = o.data.sequence_length, tokens = o.train.micro_batch_size * length;
    auto const vocab = static_cast<uint64_t>(o.model.vocab_size);
    Batch batch;
    batch.weights_T.assign(static_cast<size_t>(tokens), 1.0f);
    for (int64_t t = 0; t < tokens; ++t) {
        auto const i = static_cast<uint64_t>(t);
        if (t % length == 0) batch.cu_seqlens.push_back(static_cast<int32_t>(t));
        batch.ids_T.push_back(static_cast<int32_t>(random.below(i, vocab)));
        batch.targets_T.push_back(static_cast<int32_t>(random.below(i + 1, vocab)));
        batch.positions_T.push_back(static_cast<int32_t>(t % length));
    }
    batch.cu_seqlens.push_back(static_cast<int32_t>(tokens));
    return batch;
}

}  // namespace perigee
