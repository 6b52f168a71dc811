// A text that goes on from kept keys and values: the logits are those of one forward over the whole text.
#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "model/llama.h"
#include "support/ragged_samples.h"
#include "support/thread_comm.h"

namespace perigee::testing {

namespace {

constexpr int64_t kTokens = 600, kBlock = 16;
constexpr double kRounding = 3e-5;  ///< of products of other heights

ModelOptions small_options() {
    ModelOptions options;
    options.vocab_size = 48;
    options.hidden_size = 32;
    options.intermediate_size = 40;
    options.num_hidden_layers = 3;
    options.num_attention_heads = 4;
    options.num_key_value_heads = 2;
    options.head_dim = 8;
    options.max_position_embeddings = 1024;
    options.rope_theta = 1000;
    options.qk_norm = options.qkv_bias = true;
    return options;
}

std::vector<int32_t> random_text() {
    Philox const random(71, Purpose::mock_data, 3);
    std::vector<int32_t> ids;
    for (uint64_t t = 0; t < kTokens; ++t) ids.push_back(static_cast<int32_t>(random.below(t, 48)));
    return ids;
}

class Job {
  public:
    explicit Job(HostComm& world, int tp = 1)
        : mesh_({.tensor = tp}, world),
          layout_(llama_params(options_), tp, mesh_.tp_rank()),
          weights_(weights_of(layout_, 0.3)),
          model_(options_, layout_, mesh_, *ops_) {}

    KvCache cache(int64_t capacity = kTokens) { return {*ops_, options_, mesh_.shape(), capacity}; }
    std::vector<float> next(std::span<int32_t const> ids, std::vector<Selection> const& layers, KvCache& cache) {
        auto logits = model_.next_logits(flat_, ids, layers, cache, arena_);
        arena_.settle();
        return logits;
    }
    std::vector<float> whole(std::vector<int32_t> const& ids, std::vector<Selection> const& layers) {
        Batch batch{.ids_T = ids,
                    .targets_T = std::vector<int32_t>(ids.size()),
                    .weights_T = std::vector<float>(ids.size()),
                    .positions_T = {},
                    .cu_seqlens = {0, static_cast<int32_t>(ids.size())}};
        for (size_t t = 0; t < ids.size(); ++t) batch.positions_T.push_back(static_cast<int32_t>(t));
        return model_.logits(flat_, batch, layers, arena_);
    }

  private:
    ModelOptions options_ = small_options();
    std::unique_ptr<Device> device_ = make_host_device();
    std::unique_ptr<Ops> ops_ = make_host_ops(*device_, 1);
    Mesh mesh_;
    ParamLayout layout_;
    std::vector<float> weights_;
    FlatWeights flat_{layout_, {weights_.data(), {layout_.size()}}};
    Llama model_;
    Arena arena_{*device_};
};

std::vector<Selection> layers_of(Selection const& rule) { return {rule, rule, FullAttention{}}; }

/// Largest difference, over the vocabulary, to row `token` of all logits.
double difference(std::vector<float> const& logits, std::vector<float> const& all, int64_t token) {
    double most = 0;
    for (size_t i = 0; i < logits.size(); ++i)
        most = std::max(most, std::abs(static_cast<double>(logits[i]) -
                                       static_cast<double>(all[static_cast<size_t>(token) * logits.size() + i])));
    return most;
}

TEST(KvCache, TokenByTokenGivesTheLogitsOfOneForward) {
    auto const world = make_single_host_comm();
    Job job(*world);
    auto const text = random_text();
    for (Selection const& rule :
         {Selection(FullAttention{}), Selection(MobaOptions{.block_size = kBlock, .top_k = 3}),
          Selection(MobaOptions{.block_size = kBlock, .top_k = 3, .selection = MobaSelection::per_group}),
          Selection(NearestBlocks{.block_size = kBlock, .top_k = 3}),
          Selection(RandomBlocks{.block_size = kBlock, .top_k = 3})}) {
        auto const layers = layers_of(rule);
        auto const all = job.whole(text, layers);
        KvCache cache = job.cache();
        for (int64_t t = 0; t < kTokens; ++t) {
            auto const logits = job.next(std::span(text).subspan(static_cast<size_t>(t), 1), layers, cache);
            ASSERT_LT(difference(logits, all, t), kRounding) << "rule " << rule.index() << " token " << t;
        }
        EXPECT_EQ(cache.tokens(), kTokens);
    }
    // A gate that sees less gives other logits, so that the comparison means something.
    auto const all = job.whole(text, layers_of(MobaOptions{.block_size = kBlock, .top_k = 3}));
    KvCache cache = job.cache();
    EXPECT_GT(difference(job.next(text, layers_of(MobaOptions{.block_size = kBlock, .top_k = 2}), cache), all, 599),
              1e-3);
}

TEST(KvCache, PiecesMayBeCutAnywhere) {
    auto const world = make_single_host_comm();
    Job job(*world);
    auto const text = random_text();
    auto const layers = layers_of(MobaOptions{.block_size = kBlock, .top_k = 3});
    auto const all = job.whole(text, layers);
    for (size_t const piece : {size_t{7}, size_t{16}, size_t{127}, size_t{599}}) {
        KvCache cache = job.cache();
        for (size_t begin = 0; begin < text.size(); begin += piece) {
            size_t const count = std::min(piece, text.size() - begin);
            auto const logits = job.next(std::span(text).subspan(begin, count), layers, cache);
            ASSERT_LT(difference(logits, all, static_cast<int64_t>(begin + count) - 1), kRounding) << piece;
        }
    }
}

TEST(KvCache, ATextMayGoOnFromAnEarlierPlace) {
    auto const world = make_single_host_comm();
    Job job(*world);
    auto const text = random_text();
    auto const layers = layers_of(MobaOptions{.block_size = kBlock, .top_k = 3});
    auto const all = job.whole(text, layers);
    KvCache cache = job.cache();
    std::vector<int32_t> other(text.rbegin(), text.rend());
    std::copy_n(text.begin(), 300, other.begin());
    job.next(other, layers, cache);
    cache.set_tokens(300);
    auto const logits = job.next(std::span(text).subspan(300, 250), layers, cache);
    EXPECT_LT(difference(logits, all, 549), kRounding);
}

TEST(KvCache, TensorParallelRanksGiveTheLogitsOfOneRank) {
    auto const text = random_text();
    auto const layers = layers_of(MobaOptions{.block_size = kBlock, .top_k = 3});
    auto const alone = make_single_host_comm();
    auto const all = Job(*alone).whole(text, layers);
    std::mutex mutex;
    run_ranks(2, [&](HostComm& world) {
        Job job(world, 2);
        KvCache cache = job.cache();
        job.next(std::span(text).first(451), layers, cache);
        for (size_t t = 451; t < text.size(); ++t) {
            auto const logits = job.next(std::span(text).subspan(t, 1), layers, cache);
            std::lock_guard const lock(mutex);
            ASSERT_LT(difference(logits, all, static_cast<int64_t>(t)), kRounding);
        }
    });
}

TEST(KvCache, TakesNoMoreThanItHasRoomFor) {
    auto const world = make_single_host_comm();
    Job job(*world);
    auto const text = random_text();
    KvCache cache = job.cache(40);
    auto const layers = layers_of(FullAttention{});
    job.next(std::span(text).first(40), layers, cache);
    EXPECT_THROW(job.next(std::span(text).first(1), layers, cache), Error);
    EXPECT_THROW(cache.set_tokens(41), Error);
}

}  // namespace

}  // namespace perigee::testing
