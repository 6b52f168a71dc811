// A model small enough for finite differences, with random weights large enough to matter.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "comm/host_comm.h"
#include "model/llama.h"
#include "ops/observed_ops.h"
#include "support/random.h"

namespace perigee::testing {

/// Grouped heads, three layers, nothing a multiple of a vector's width.
inline ModelOptions tiny_options() {
    ModelOptions options;
    options.vocab_size = 11;
    options.hidden_size = 12;
    options.intermediate_size = 10;
    options.num_hidden_layers = 3;
    options.num_attention_heads = 4;
    options.num_key_value_heads = 2;
    options.head_dim = 6;
    options.max_position_embeddings = 64;
    options.rope_theta = 100;
    return options;
}
inline MobaOptions tiny_moba() { return {.block_size = 4, .top_k = 3}; }

/// Documents of these lengths with random tokens; about a third of the loss weights are 0.
inline Batch random_batch(std::vector<int64_t> const& lengths, int64_t vocab, uint64_t seed) {
    Philox const random(seed, Purpose::mock_data, 1);
    Batch batch;
    batch.cu_seqlens.push_back(0);
    uint64_t index = 0;
    auto const draw = [&](int64_t below) { return random.below(index++, static_cast<uint64_t>(below)); };
    for (int64_t length : lengths) {
        for (int64_t t = 0; t < length; ++t) {
            batch.ids_T.push_back(static_cast<int32_t>(draw(vocab)));
            batch.targets_T.push_back(static_cast<int32_t>(draw(vocab)));
            batch.weights_T.push_back(0.5f * static_cast<float>(draw(3)));
            batch.positions_T.push_back(static_cast<int32_t>(t));
        }
        batch.cu_seqlens.push_back(static_cast<int32_t>(batch.tokens()));
    }
    return batch;
}

inline std::vector<Selection> selections(std::vector<AttentionKind> const& kinds, MobaOptions const& moba) {
    std::vector<Selection> result;
    for (AttentionKind kind : kinds)
        result.push_back(kind == AttentionKind::moba ? Selection(moba) : Selection(FullAttention{}));
    return result;
}

/// Counts operations by their names.
class CountedOps final : public ObservedOps {
  public:
    using ObservedOps::ObservedOps;
    void run(Operation const& operation) override {
        ++calls[name_of(operation)];
        ObservedOps::run(operation);
    }
    std::map<std::string, int64_t> calls;
};

template <class Real>
class TinyModel {
  public:
    TinyModel(ModelOptions const& options, MobaOptions const& moba, uint64_t seed, MemoryPolicy const& policy = {},
              PrecisionOptions const& precision = {})
        : layout(llama_params(options), 1, 0),
          weights(random_normal<Real>(layout.size(), seed, 0.4)),
          grads(weights.size()),
          ops_(make_ops()),
          moba_(moba),
          model_(options, layout, mesh_, counted_, policy, precision) {
        for (ParamLayout::Entry const& entry : layout.entries())
            if (entry.spec.init == Init::ones)
                for (int64_t i = 0; i < entry.local.size(); ++i) weights[static_cast<size_t>(entry.offset + i)] += 1;
    }

    double loss(Batch const& batch, std::vector<AttentionKind> const& kinds) { return sums(batch, kinds).nll; }
    LossSums sums(Batch const& batch, std::vector<AttentionKind> const& kinds) {
        LossSums const value = model_.loss(flat_, batch, selections(kinds), arena);
        arena.settle();
        return value;
    }
    TokenScores scores(Batch const& batch, std::vector<AttentionKind> const& kinds, int64_t allowed, int64_t top = 0) {
        return model_.scores(flat_, batch, selections(kinds), allowed, arena, top);
    }
    BlockChoices choices(Batch const& batch, std::vector<AttentionKind> const& kinds) {
        return model_.choices(flat_, batch, selections(kinds), arena);
    }
    /// Adds to `grads`, or overwrites them where they are `fresh`. `stream_rstd_LP`: as GradientSink's.
    double gradient(Batch const& batch, std::vector<AttentionKind> const& kinds, double scale = 1, bool fresh = false,
                    TensorView stream_rstd_LP = {}) {
        FlatGradients sums(layout, view(grads), fresh);
        double const value = model_.loss_and_gradient(
            flat_, {.grads = sums, .scale = scale, .stream_rstd_LP = stream_rstd_LP}, batch, selections(kinds), arena);
        arena.settle();
        return value;
    }
    int64_t offloaded_bytes() const { return model_.offloaded_bytes(); }
    int64_t calls(char const* operation) const {
        auto const found = counted_.calls.find(operation);
        return found == counted_.calls.end() ? 0 : found->second;
    }
    std::vector<float> next_logits(Batch const& batch, std::vector<AttentionKind> const& kinds) {
        return model_.next_logits(flat_, batch, selections(kinds), arena);
    }

  private:
    std::vector<Selection> selections(std::vector<AttentionKind> const& kinds) const {
        return testing::selections(kinds, moba_);
    }
    TensorView view(std::vector<Real>& flat) { return {flat.data(), {std::ssize(flat)}}; }
    std::unique_ptr<Ops> make_ops() {
        if constexpr (std::is_same_v<Real, float>)
            return make_host_ops(*device_, 1);
        else
            return make_host_ops_f64(*device_, 1);
    }

    std::unique_ptr<Device> device_ = make_host_device();
    std::unique_ptr<HostComm> world_ = make_single_host_comm();
    Mesh mesh_{ParallelOptions{}, *world_};

  public:
    ParamLayout layout;
    std::vector<Real> weights;
    std::vector<Real> grads;
    Arena arena{*device_};

  private:
    std::unique_ptr<Ops> ops_;
    CountedOps counted_{*ops_};
    MobaOptions moba_;
    FlatWeights flat_{layout, view(weights)};
    Llama model_;
};

inline std::vector<AttentionKind> all(AttentionKind kind) { return std::vector<AttentionKind>(3, kind); }
inline std::vector<AttentionKind> mixed() { return {AttentionKind::moba, AttentionKind::moba, AttentionKind::full}; }

}  // namespace perigee::testing
