// What tests of layouts train on: the same samples and weights whatever ranks share them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/philox.h"
#include "parallel/param_spec.h"
#include "tensor/batch.h"

namespace perigee::testing {

/// Packed documents that end anywhere. The first quarter of the samples is masked, so that a data-parallel rank or a
/// micro-batch has no loss at all; of the others about 1 in 80 tokens carries loss.
struct RaggedSamples {
    int64_t samples = 0;
    int64_t length = 0;
    int64_t vocab = 0;

    void append(Batch& batch, int64_t sample) const {
        Philox const random(91, Purpose::mock_data, static_cast<uint64_t>(sample));
        uint64_t index = 0;
        auto const draw = [&](int64_t below) {
            return static_cast<int64_t>(random.below(index++, static_cast<uint64_t>(below)));
        };
        if (batch.cu_seqlens.empty()) batch.cu_seqlens.push_back(0);
        for (int64_t left = length; left > 0;) {
            int64_t const document = std::min(left, 1 + draw(length));
            for (int64_t t = 0; t < document; ++t) {
                batch.ids_T.push_back(static_cast<int32_t>(draw(vocab)));
                batch.targets_T.push_back(static_cast<int32_t>(draw(vocab)));
                batch.weights_T.push_back(sample >= samples / 4 && draw(80) == 0 ? 0.5f + static_cast<float>(draw(3))
                                                                                 : 0);
                batch.positions_T.push_back(static_cast<int32_t>(t));
            }
            batch.cu_seqlens.push_back(static_cast<int32_t>(batch.tokens()));
            left -= document;
        }
    }
};

/// A rank's flat buffer: every element a function of its name and place in the whole tensor.
inline std::vector<float> weights_of(ParamLayout const& layout, double deviation) {
    std::vector<float> weights(static_cast<size_t>(layout.size()));
    for (ParamLayout::Entry const& e : layout.entries()) {
        Philox const random(92, Purpose::init, hash_name(e.spec.name));
        for (Shard::Run const& run : e.shard.runs())
            for (int64_t i = 0; i < run.count; ++i)
                weights[static_cast<size_t>(e.offset + run.local + i)] =
                    static_cast<float>(deviation * random.normal(static_cast<uint64_t>(run.global + i)) +
                                       (e.spec.init == Init::ones ? 1 : 0));
    }
    return weights;
}

}  // namespace perigee::testing
