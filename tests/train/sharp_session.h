// A session of a small hybrid model on CPU ranks. Its weights are random and so large that no two tokens are nearly as
// likely.
#pragma once

#include <memory>

#include "config/config.h"
#include "support/ragged_samples.h"
#include "train/session.h"

namespace perigee::testing {

struct SharpSession {
    /// Of the vocabulary's 96 tokens, as many have a text.
    static constexpr int64_t kAllowed = 90;

    explicit SharpSession(HostComm& world, ParallelOptions const& parallel = {})
        : files(make_file_system()), session(options(parallel), world, *files) {
        std::vector<float> const weights = weights_of(session.layout(), 0.4);
        session.ops().upload(session.weights().flat(), weights.data());
    }

    std::unique_ptr<FileSystem> files;
    Session session;

  private:
    static RunOptions options(ParallelOptions const& parallel) {
        RunOptions options = parse_config(R"(
model: {vocab_size: 96, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4,
        num_key_value_heads: 4, max_position_embeddings: 256}
attention: {kind: moba, block_size: 8, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 100}
train: {global_batch_size: 4, micro_batch_size: 2}
device: cpu
threads: 1
)",
                                          "sharp", {});
        options.parallel = parallel;
        return options;
    }
};

}  // namespace perigee::testing
