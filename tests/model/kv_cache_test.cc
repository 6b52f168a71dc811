// A text that goes on from kept keys and values: the logits are those of one forward over the whole text.
#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>

#include "kernels/decode/scratch.h"
#include "model/llama.h"
#include "support/ahead_case.h"
#include "support/ragged_samples.h"
#include "support/thread_comm.h"

namespace perigee::testing {

namespace {

constexpr int64_t kTokens = 600, kBlock = 16;
constexpr double kRounding = 3e-5;        ///< of products of other heights
constexpr double kDecodeRounding = 1e-5;  ///< relative to the largest logit

ModelOptions small_options(int64_t lora_rank = 0) {
    ModelOptions options;
    options.lora = {.rank = lora_rank, .alpha = 6};
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

std::vector<Selection> layers_of(Selection const& rule) { return {rule, rule, FullAttention{}}; }

class Job {
  public:
    explicit Job(HostComm& world, int tp = 1, int64_t lora_rank = 0)
        : options_(small_options(lora_rank)),
          mesh_({.tensor = tp}, world),
          layout_(llama_params(options_), tp, mesh_.tp_rank()),
          weights_(weights_of(layout_, 0.3)),
          model_(options_, layout_, mesh_, *ops_) {}

    KvCache cache(int64_t capacity = kTokens) { return cache(CacheRoom{.tokens = capacity, .block_size = kBlock}); }
    KvCache cache(CacheRoom const& room) { return {*ops_, options_, mesh_.shape(), room}; }
    /// One token of each text.
    std::vector<float> decode(std::span<int32_t const> ids, std::vector<Selection> const& layers, KvCache& cache) {
        auto logits = model_.decode(flat_, ids, layers, cache, arena_);
        arena_.settle();
        return logits;
    }
    std::vector<float> next(std::span<int32_t const> ids, std::vector<Selection> const& layers, KvCache& cache,
                            int64_t text = 0) {
        auto logits = model_.next_logits(flat_, ids, layers, cache, arena_, text);
        arena_.settle();
        return logits;
    }
    int32_t draw(int32_t id, KvCache& cache, DrawRule const& rule, bool ahead) {
        auto const ids = model_.decode(flat_, {&id, 1}, layers_of(MobaOptions{.block_size = kBlock, .top_k = 3}), cache,
                                       arena_, {.rules = {&rule, 1}, .allowed = 45, .ahead = ahead});
        arena_.settle();
        return ids.front();
    }
    std::vector<float> next(std::span<int32_t const> ids, KvCache& cache) {
        return next(ids, layers_of(MobaOptions{.block_size = kBlock, .top_k = 3}), cache);
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
    ModelOptions options_;
    std::unique_ptr<Device> device_ = make_host_device();
    std::unique_ptr<Ops> ops_ = make_host_ops(*device_, 1);
    Mesh mesh_;
    ParamLayout layout_;
    std::vector<float> weights_;
    FlatWeights flat_{layout_, {weights_.data(), {layout_.size()}}};
    Llama model_;
    Arena arena_{*device_};
};

/// Largest difference, over the vocabulary, to row `token` of all logits; infinite where there are none or one is NaN.
double difference(std::vector<float> const& logits, std::vector<float> const& all, int64_t token) {
    size_t const row = static_cast<size_t>(token) * logits.size();
    if (logits.empty() || row + logits.size() > all.size()) return INFINITY;
    double most = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
        double const off = std::abs(static_cast<double>(logits[i]) - static_cast<double>(all[row + i]));
        most = std::isnan(off) ? INFINITY : std::max(most, off);
    }
    return most;
}

/// NaN where there are none or one is NaN: no ratio to it is below a bound.
double largest(std::vector<float> const& logits) {
    if (logits.empty() || std::ranges::any_of(logits, [](float x) { return std::isnan(x); })) return NAN;
    double most = 0;
    for (float const x : logits) most = std::max(most, std::abs(static_cast<double>(x)));
    return most;
}

TEST(KvCache, GivesTheLogitsOfOneForwardWithAdapters) {
    run_ranks(2, [&](HostComm& world) {
        auto const alone = make_single_host_comm();
        Job cut(world, 2, 3), whole(*alone, 1, 3);
        auto const text = random_text();
        auto const layers = layers_of(MobaOptions{.block_size = kBlock, .top_k = 3});
        auto const all = whole.whole(text, layers);
        KvCache cache = cut.cache();
        EXPECT_LT(difference(cut.next(std::span(text).first(300), layers, cache), all, 299), kRounding);
        for (size_t t = 300; t < 310; ++t)
            EXPECT_LT(
                difference(cut.decode(std::span(text).subspan(t, 1), layers, cache), all, static_cast<int64_t>(t)),
                kRounding);
        if (world.rank() != 0) return;
        KvCache own = whole.cache();
        whole.next(std::span(text).first(300), layers, own);
        for (size_t t = 300; t < 310; ++t)
            EXPECT_LT(
                difference(whole.decode(std::span(text).subspan(t, 1), layers, own), all, static_cast<int64_t>(t)),
                kRounding);
    });
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
        KvCache cache = job.cache(), decoded = job.cache();
        double most = 0;
        for (int64_t t = 0; t < kTokens; ++t) {
            auto const id = std::span(text).subspan(static_cast<size_t>(t), 1);
            ASSERT_LT(difference(job.next(id, layers, cache), all, t), kRounding)
                << "rule " << rule.index() << " token " << t;
            most = std::max(most, difference(job.decode(id, layers, decoded), all, t));
        }
        EXPECT_LT(most / largest(all), kDecodeRounding) << "rule " << rule.index();
        EXPECT_EQ(cache.tokens(), kTokens);
        EXPECT_EQ(decoded.tokens(), kTokens);
    }
    // A gate that sees less gives other logits, so that the comparison means something.
    auto const all = job.whole(text, layers_of(MobaOptions{.block_size = kBlock, .top_k = 3}));
    KvCache cache = job.cache();
    double const off =
        difference(job.next(text, layers_of(MobaOptions{.block_size = kBlock, .top_k = 2}), cache), all, 599);
    EXPECT_GT(off, 1e-3);
    EXPECT_TRUE(std::isfinite(off));
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

TEST(KvCache, StepsAheadOfTheirTokensChangeNoText) {
    auto const world = make_single_host_comm();
    Job job(*world);
    std::vector<int32_t> prompt = random_text();
    prompt.resize(130);
    auto const in_turn = AheadCase(job, false).all(prompt);
    EXPECT_EQ(AheadCase(job, true).all(prompt), in_turn);
    EXPECT_NE(in_turn[3], std::vector(in_turn[0].begin(), in_turn[0].begin() + 15)) << "the other prompt matters";
}

TEST(KvCache, AStepAheadNeedsRoom) {
    auto const world = make_single_host_comm();
    Job job(*world);
    std::vector<int32_t> prompt = random_text();
    prompt.resize(130);
    KvCache cache = job.cache(140);
    job.next(prompt, cache);
    AheadCase steps(job, true);
    EXPECT_EQ(steps.go_on(cache, 5, 10).size(), 10u);
    EXPECT_EQ(cache.tokens(), 140);
    EXPECT_THROW(steps.go_on(cache, 5, 1), Error);
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
            auto const id = std::span(text).subspan(t, 1);
            auto const logits = t % 2 == 0 ? job.next(id, layers, cache) : job.decode(id, layers, cache);
            std::lock_guard const lock(mutex);
            ASSERT_LT(difference(logits, all, static_cast<int64_t>(t)), kRounding);
        }
    });
}

/// Row `text` of logits [texts, V].
std::vector<float> row_of(std::vector<float> const& logits, size_t text, size_t texts) {
    size_t const width = logits.size() / texts;
    return {logits.begin() + static_cast<int64_t>(text * width),
            logits.begin() + static_cast<int64_t>((text + 1) * width)};
}

TEST(KvCache, TextsThatGrowTogetherInScatteredPagesGiveTheirOwnLogits) {
    auto const world = make_single_host_comm();
    Job job(*world);
    auto const text = random_text();
    std::vector<int32_t> const other(text.rbegin(), text.rend());
    auto const layers = layers_of(MobaOptions{.block_size = kBlock, .top_k = 3});
    auto const all = job.whole(text, layers), all_of_other = job.whole(other, layers);
    KvCache cache = job.cache({.tokens = kTokens, .block_size = kBlock, .texts = 3, .page_size = 8});
    // Pages of the two alternate; the text between them ends meanwhile.
    for (size_t begin = 0; begin < 120; begin += 24) {
        job.next(std::span(text).subspan(begin, 24), layers, cache);
        job.next(std::span(other).subspan(begin, 24), layers, cache, 2);
        if (begin < 48) job.next(std::span(other).subspan(begin, 24), layers, cache, 1);
        if (begin == 72) cache.clear(1);
    }
    EXPECT_GT(cache.runs(0, 0, 120).size(), 2u);
    for (size_t t = 120; t < 400; ++t) {
        std::vector<int32_t> const ids = {text[t], -1, other[t]};
        auto const logits = job.decode(ids, layers, cache);
        auto const at = static_cast<int64_t>(t);
        ASSERT_LT(difference(row_of(logits, 0, 3), all, at), kRounding);
        ASSERT_LT(difference(row_of(logits, 2, 3), all_of_other, at), kRounding);
    }
    // A piece by training's operations in the middle, from pages that are no neighbours.
    auto const logits = job.next(std::span(text).subspan(400, 100), layers, cache);
    EXPECT_LT(difference(logits, all, 499), kRounding);
    EXPECT_EQ(cache.tokens(1), 0);
}

TEST(KvCache, ALostMeanOrPageShowsInTheLogits) {
    auto const world = make_single_host_comm();
    Job job(*world);
    auto const text = random_text();
    auto const layers = layers_of(MobaOptions{.block_size = kBlock, .top_k = 3});
    auto const all = job.whole(text, layers);
    KvCache cache = job.cache();
    job.next(std::span(text).first(500), layers, cache);
    CachePages const pages = cache.pages(1, 0, 1);
    std::fill_n(pages.means_NGK.as<float>(), pages.means_NGK.size(), 0.0f);
    double most = 0;
    for (size_t t = 500; t < 540; ++t)
        most = std::max(
            most, difference(job.decode(std::span(text).subspan(t, 1), layers, cache), all, static_cast<int64_t>(t)));
    EXPECT_GT(most, 1e-3);
    EXPECT_TRUE(std::isfinite(most));
}

TEST(KvCache, PagesComeAndGoWithTextsAndMemoryStays) {
    auto const world = make_single_host_comm();
    Job job(*world);
    constexpr int64_t kTexts = 8, kPages = 40, kPage = 16;
    KvCache cache = job.cache({.tokens = 256, .block_size = kBlock, .texts = kTexts, .pages = kPages});
    int64_t const bytes = cache.bytes();
    Philox const random(9, Purpose::mock_data);
    std::vector<int64_t> expected(kTexts);  // pages
    int64_t refused = 0;
    for (uint64_t i = 0; i < 10'000; ++i) {
        auto const text = static_cast<int64_t>(random.below(3 * i, kTexts));
        int64_t& pages = expected[static_cast<size_t>(text)];
        if (random.below(3 * i + 1, 4) == 0) {
            cache.clear(text);
            pages = 0;
        } else {
            int64_t const tokens =
                std::min<int64_t>(256, cache.tokens(text) + 1 + static_cast<int64_t>(random.below(3 * i + 2, 60)));
            int64_t const needed = std::max(pages, (tokens + kPage - 1) / kPage);
            bool const fits = needed - pages <= cache.free_pages();
            ASSERT_EQ(cache.make_room(text, tokens), fits);
            refused += !fits;
            if (fits) {
                pages = needed;
                cache.set_tokens(tokens, text);
            }
        }
        int64_t in_use = 0;
        std::set<int32_t> numbers;
        for (int64_t t = 0; t < kTexts; ++t) {
            in_use += expected[static_cast<size_t>(t)];
            auto const* const table = cache.pages(0, t, t + 1).table_SM.as<int32_t>();
            numbers.insert(table, table + expected[static_cast<size_t>(t)]);
        }
        ASSERT_EQ(cache.free_pages(), kPages - in_use);
        ASSERT_EQ(std::ssize(numbers), in_use) << "a page of two texts";
        ASSERT_EQ(cache.bytes(), bytes);
    }
    EXPECT_GT(refused, 10);
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

TEST(KvCache, PagesFitWithWhatDecodingTakes) {
    // Two texts with 4 heads of size 8 and 3 blocks of 200 tokens: a block has splits of 128 and 72 keys.
    EXPECT_EQ(decode::most_splits(3, 200), 6);
    EXPECT_EQ(decode::attend_floats(2, 4, 8, 6), 2 * 4 * (6 * 8 + 6 + 1));
    EXPECT_EQ(decode::select_floats(2, 4, 3), 24);
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device);
    CacheRoom const room{.tokens = 600, .block_size = 200, .texts = 2};
    EXPECT_EQ(KvCache::decode_bytes(*ops, small_options(), MeshShape{}, room), 0) << "on the CPU";
    int64_t const page = KvCache::page_bytes(*ops, small_options(), MeshShape{}, page_size_of(200));
    EXPECT_EQ(KvCache::pages_within(6 * page - 1, *ops, small_options(), MeshShape{}, room), 5);
    EXPECT_EQ(KvCache::pages_within(1, *ops, small_options(), MeshShape{}, room), 1);
}

}  // namespace

}  // namespace perigee::testing
