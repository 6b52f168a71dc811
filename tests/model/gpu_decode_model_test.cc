// Decoding by the whole model on the GPU: logits of token after token, from the cache, are those of one forward, as
// CUDA graphs and without, for one text and several.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "comm/host_comm.h"
#include "model/llama.h"
#include "ops/sampling.h"
#include "support/ahead_case.h"
#include "support/random.h"

namespace perigee::testing {

namespace {

constexpr int64_t kVocab = 500, kGpuTokens = 700, kGpuBlock = 64;

ModelOptions options_of(int64_t head_dim, int64_t vocabulary) {
    ModelOptions options;
    options.vocab_size = vocabulary;
    options.hidden_size = 256;
    options.intermediate_size = 384;
    options.num_hidden_layers = 3;
    options.num_attention_heads = 8;
    options.num_key_value_heads = 2;
    options.head_dim = head_dim;
    options.max_position_embeddings = 1024;
    return options;
}

std::vector<int32_t> text_of(uint64_t seed) {
    Philox const random(seed, Purpose::mock_data, 3);
    std::vector<int32_t> ids;
    for (uint64_t t = 0; t < kGpuTokens; ++t) ids.push_back(static_cast<int32_t>(random.below(t, kVocab)));
    return ids;
}

std::vector<int32_t> first_tokens(std::vector<int32_t> ids, size_t count) {
    ids.resize(count);
    return ids;
}

class GpuJob {
  public:
    explicit GpuJob(int64_t head_dim, bool graphs = true, bool deterministic = false, int64_t vocabulary = kVocab)
        : options_(options_of(head_dim, vocabulary)),
          ops_(make_cuda_ops(*device_, {.deterministic = deterministic, .graphs = graphs})) {
        std::vector<float> start = random_normal<float>(layout_.size(), 7, 0.05);
        for (ParamLayout::Entry const& entry : layout_.entries())
            if (entry.spec.init == Init::ones)
                for (int64_t i = 0; i < entry.local.size(); ++i) start[static_cast<size_t>(entry.offset + i)] += 1;
        std::vector<bf16> rounded;
        for (float const w : start) rounded.push_back(to_bf16(w));
        TensorView const weights = state_.allocate("weights", DType::bf16, {layout_.size()});
        ops_->upload(weights, rounded.data());
        flat_.emplace(layout_, weights);
        model_.emplace(options_, layout_, mesh_, *ops_);
    }

    KvCache cache(int64_t texts = 1) {
        return {*ops_, options_, mesh_.shape(), {.tokens = 1000, .block_size = kGpuBlock, .texts = texts}};
    }
    std::vector<float> next(std::span<int32_t const> ids, KvCache& cache, int64_t text = 0) {
        auto logits = model_->next_logits(*flat_, ids, layers, cache, arena_, text);
        arena_.settle();
        return logits;
    }
    std::vector<float> decode(std::span<int32_t const> ids, KvCache& cache) {
        auto logits = model_->decode(*flat_, ids, layers, cache, arena_);
        arena_.settle();
        return logits;
    }
    int32_t draw(int32_t id, KvCache& cache, DrawRule const& rule, bool ahead = false) {
        auto const ids = model_->decode(*flat_, {&id, 1}, layers, cache, arena_,
                                        {.rules = {&rule, 1}, .allowed = options_.vocab_size - 50, .ahead = ahead});
        arena_.settle();
        return ids.front();
    }
    /// Of one forward, [T, V].
    std::vector<float> whole(std::vector<int32_t> const& ids) {
        Batch batch{.ids_T = ids,
                    .targets_T = std::vector<int32_t>(ids.size()),
                    .weights_T = std::vector<float>(ids.size()),
                    .positions_T = {},
                    .cu_seqlens = {0, static_cast<int32_t>(ids.size())}};
        for (size_t t = 0; t < ids.size(); ++t) batch.positions_T.push_back(static_cast<int32_t>(t));
        return model_->logits(*flat_, batch, layers, arena_);
    }

    std::vector<Selection> layers = {MobaOptions{.block_size = kGpuBlock, .top_k = 3},
                                     MobaOptions{.block_size = kGpuBlock, .top_k = 3}, FullAttention{}};

  private:
    ModelOptions options_;
    std::unique_ptr<Device> device_ = make_cuda_device(0);
    std::unique_ptr<Ops> ops_;
    std::unique_ptr<HostComm> world_ = make_single_host_comm();
    Mesh mesh_{ParallelOptions{}, *world_};
    ParamLayout layout_{llama_params(options_), 1, 0};
    Arena state_{*device_}, arena_{*device_};
    std::optional<FlatWeights> flat_;
    std::optional<Llama> model_;
};

class GpuDecodeModel : public ::testing::Test {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    }
};

/// Relative L2 difference of a row of logits to row `token` of all.
double difference(std::span<float const> logits, std::vector<float> const& all, size_t token) {
    std::vector<float> const found(logits.begin(), logits.end());
    auto const begin = all.begin() + static_cast<int64_t>(token * found.size());
    return relative_error(found, std::vector<float>(begin, begin + std::ssize(found)));
}

/// Products of other heights round otherwise in bf16, and may turn a choice near a tie.
constexpr double kTypical = 0.02, kNearTies = 0.25;

/// Median and 99th percentile: near ties may select other blocks.
std::pair<double, double> spread(std::vector<double> differences) {
    std::ranges::sort(differences);
    return {differences[differences.size() / 2], differences[differences.size() * 99 / 100]};
}

TEST_F(GpuDecodeModel, GivesTheLogitsOfOneForward) {
    for (int64_t const dim : {64, 128})
        for (bool const graphs : {true, false}) {
            GpuJob job(dim, graphs);
            auto const text = text_of(1);
            auto const all = job.whole(text);
            KvCache cache = job.cache();
            std::vector<double> differences = {difference(job.next(std::span(text).first(301), cache), all, 300)};
            for (size_t t = 301; t < text.size(); ++t)
                differences.push_back(difference(job.decode(std::span(text).subspan(t, 1), cache), all, t));
            auto const [typical, near_ties] = spread(differences);
            EXPECT_LT(typical, kTypical) << dim;
            EXPECT_LT(near_ties, kNearTies) << dim;
        }
}

TEST_F(GpuDecodeModel, TheComparisonSeesAWrongTokenAndWrongBlocks) {
    auto const text = text_of(1);
    auto const typical = [&](GpuJob& job, std::vector<float> const& all, KvCache& cache) {
        std::vector<double> differences;
        for (size_t t = 301; t < text.size(); ++t)
            differences.push_back(difference(job.decode(std::span(text).subspan(t, 1), cache), all, t));
        return spread(differences).first;
    };
    GpuJob job(64);
    auto const all = job.whole(text);
    auto other = text;
    other[300] = (other[300] + 1) % kVocab;
    KvCache wrong_token = job.cache(), wrong_blocks = job.cache();
    job.next(std::span(other).first(301), wrong_token);
    job.next(std::span(text).first(301), wrong_blocks);
    EXPECT_GT(typical(job, all, wrong_token), kTypical);
    for (Selection& layer : job.layers)
        if (budget_of(layer)) layer = NearestBlocks{.block_size = kGpuBlock, .top_k = 3};
    EXPECT_GT(typical(job, all, wrong_blocks), kTypical);
}

TEST_F(GpuDecodeModel, GraphsChangeNoBit) {
    auto const text = text_of(2);
    std::vector<std::vector<float>> found;
    for (bool const graphs : {true, false}) {
        GpuJob job(64, graphs, true);  // products by the same algorithms
        KvCache cache = job.cache();
        std::vector<float> logits = job.next(std::span(text).first(150), cache);
        for (size_t t = 150; t < 400; ++t) {
            auto const next = job.decode(std::span(text).subspan(t, 1), cache);
            logits.insert(logits.end(), next.begin(), next.end());
        }
        found.push_back(logits);
    }
    EXPECT_EQ(found[0], found[1]);
}

TEST_F(GpuDecodeModel, DrawsWhatTheHostDrawsFromTheLogits) {
    GpuJob job(64);
    KvCache logits_come = job.cache(), ids_come = job.cache();
    auto const text = text_of(5);
    for (KvCache* cache : {&logits_come, &ids_come}) job.next(std::span(text).first(100), *cache);
    int64_t greedy = 0;
    for (size_t t = 100; t < 300; ++t) {
        auto const logits = job.decode(std::span(text).subspan(t, 1), logits_come);
        DrawRule const rule{.temperature = t % 3 == 0 ? 0 : 1.5,
                            .top_p = 0.95,
                            .random = Philox(1, Purpose::generate),
                            .index = static_cast<int64_t>(t)};
        int32_t const want = draw_token(std::span(logits).first(450), rule);
        ASSERT_EQ(job.draw(text[t], ids_come, rule), want) << t;
        greedy += want == std::ranges::max_element(logits.begin(), logits.begin() + 450) - logits.begin();
    }
    EXPECT_LT(greedy, 150) << "numbers matter";
}

TEST_F(GpuDecodeModel, StepsAheadOfTheirTokensChangeNoText) {
    GpuJob job(64);
    std::vector<int32_t> const prompt = first_tokens(text_of(6), 130);
    EXPECT_EQ(AheadCase(job, true).all(prompt), AheadCase(job, false).all(prompt));
}

TEST_F(GpuDecodeModel, AStepAheadOfATokenThatTheHostDrawsIsForgotten) {
    GpuJob job(64, true, false, 12'000);
    auto const prompt = first_tokens(text_of(7), 100);
    std::vector<int32_t> by_way[2];
    for (bool const ahead : {false, true}) {
        KvCache cache = job.cache();
        job.next(prompt, cache);
        int32_t id = 9;
        for (int64_t i = 0; i < 24; ++i) {
            // Hot: more tokens may be drawn than the device sorts.
            DrawRule const rule{
                .temperature = i % 4 == 3 ? 1000.0 : 1.0, .random = Philox(3, Purpose::generate), .index = i};
            by_way[ahead].push_back(id = job.draw(id, cache, rule, ahead));
        }
    }
    EXPECT_EQ(by_way[0], by_way[1]);
}

TEST_F(GpuDecodeModel, TextsOfABatchGiveTheLogitsOfOneForward) {
    GpuJob job(64);
    std::vector<std::vector<int32_t>> texts;
    std::vector<std::vector<float>> all;
    KvCache cache = job.cache(4);
    for (uint64_t i = 0; i < 3; ++i) {
        texts.push_back(text_of(10 + i));
        all.push_back(job.whole(texts.back()));
        job.next(std::span(texts.back()).first(63 + 40 * i), cache, static_cast<int64_t>(i));
    }
    std::vector<double> differences;
    for (int step = 0; step < 200; ++step) {
        std::vector<int32_t> ids;
        for (size_t i = 0; i < 3; ++i)
            ids.push_back(texts[i][static_cast<size_t>(cache.tokens(static_cast<int64_t>(i)))]);
        ids.push_back(-1);
        auto const logits = job.decode(ids, cache);
        for (size_t i = 0; i < 3; ++i) {
            auto const row = std::span(logits).subspan(i * kVocab, kVocab);
            auto const token = static_cast<size_t>(cache.tokens(static_cast<int64_t>(i))) - 1;
            differences.push_back(difference(row, all[i], token));
        }
    }
    auto const [typical, near_ties] = spread(differences);
    EXPECT_LT(typical, kTypical);
    EXPECT_LT(near_ties, kNearTies);
    EXPECT_EQ(cache.tokens(3), 0);
}

TEST_F(GpuDecodeModel, PiecesMayBeCutAnywhere) {
    GpuJob job(64);
    auto const text = text_of(4);
    auto const all = job.whole(text);
    std::vector<double> differences;
    for (size_t const piece : {size_t{37}, size_t{64}, size_t{127}, size_t{256}, size_t{699}}) {
        KvCache cache = job.cache();
        for (size_t begin = 0; begin < text.size(); begin += piece) {
            size_t const count = std::min(piece, text.size() - begin);
            differences.push_back(
                difference(job.next(std::span(text).subspan(begin, count), cache), all, begin + count - 1));
        }
    }
    auto const [typical, near_ties] = spread(differences);
    EXPECT_LT(typical, kTypical);
    EXPECT_LT(near_ties, kNearTies);
}

}  // namespace

}  // namespace perigee::testing
