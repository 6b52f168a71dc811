// Embedding and loss on the GPU.
#include <fmt/format.h>

#include "ops/gpu_case.h"

namespace perigee::testing {

namespace {

using GpuEmbedding = GpuTest;
using GpuLoss = GpuTest;

void embedding_case(Lab& lab, std::vector<int32_t> const& ids, int64_t vocab, int64_t width, int64_t vocab_begin) {
    Shape const table{vocab, width}, x{std::ssize(ids), width};
    TensorView const ids_T = lab.ids(ids), out = lab.compute(x);
    lab.ops.embedding_forward({out, ids_T, lab.compute(table, random_bf16(table.size(), 41)), vocab_begin});
    lab.result("x", out);
    TensorView const dtable = lab.main(table, random_bf16(table.size(), 42));
    lab.ops.embedding_backward({dtable, ids_T, lab.compute(x, random_bf16(x.size(), 43)), vocab_begin});
    lab.result("dtable", dtable);
}

TEST_F(GpuEmbedding, MatchesTheHostOnEveryShard) {
    std::vector<int32_t> const few = random_ids(700, 13, 1), many = random_ids(900, 600, 2);
    std::vector<int32_t> const same(333, 3), one = {4};
    for (auto const& ids : {few, many, same, one})
        for (int64_t width : {37, 520})
            for (auto [begin, vocab] : {std::pair<int64_t, int64_t>(0, 600), {2, 6}, {6000, 10}}) {
                SCOPED_TRACE(fmt::format("{} ids, width {}, rows [{}, {})", ids.size(), width, begin, begin + vocab));
                compare([&](Lab& lab) { embedding_case(lab, ids, vocab, width, begin); });
            }
}

TEST_F(GpuEmbedding, MatchesTheHostWhereSomeIdsAreFrequent) {
    // Of id k there are about 5000 / (k + 1) / ln 600 tokens, but of the last ones exactly 32, 33 and 70, all at the
    // end: as many as a unit has, and a little more.
    std::vector<int32_t> ids;
    Philox const random(3, Purpose::sample_order);
    for (uint64_t i = 0; i < 5000; ++i) ids.push_back(static_cast<int32_t>(std::pow(600, random.uniform(i))) - 1);
    for (auto [id, count] : {std::pair(700, 32), {701, 33}, {702, 70}}) ids.insert(ids.end(), count, id);
    for (int64_t width : {37, 264}) {
        SCOPED_TRACE(width);
        compare([&](Lab& lab) { embedding_case(lab, ids, 710, width, 0); });
    }
    compare([&](Lab& lab) { embedding_case(lab, ids, 690, 64, 15); });
    // More columns than a block has threads for.
    std::vector<int32_t> const last(ids.end() - 180, ids.end());
    compare([&](Lab& lab) { embedding_case(lab, last, 15, 2056, 690); });
}

TEST_F(GpuEmbedding, MatchesTheHostWhereOneIdIsAlmostAll) {
    // More tokens of a row than a warp notes.
    std::vector<int32_t> ids(9000, 5);
    for (size_t i = 0; i < ids.size(); i += 11) ids[i] = static_cast<int32_t>(i % 40);
    compare([&](Lab& lab) { embedding_case(lab, ids, 40, 40, 0); });
}

TEST_F(GpuEmbedding, MatchesTheHostWhereThereAreManyRows) {
    // More rows with one token, and more with a few, than the GPU has blocks for at a time.
    std::vector<int32_t> ids = random_ids(20000, 6000, 4);
    for (int32_t id = 6000; id < 15000; ++id) ids.push_back(id);
    compare([&](Lab& lab) { embedding_case(lab, ids, 15000, 24, 0); });
}

TEST_F(GpuEmbedding, MatchesTheHostInALargeVocabulary) {
    // Ids whose tokens more blocks group than elsewhere; the last one is frequent.
    constexpr int64_t kVocab = 300'001;
    std::vector<int32_t> ids = random_ids(3000, kVocab, 5);
    for (size_t i = 0; i < ids.size(); i += 7) ids[i] = kVocab - 1;
    compare([&](Lab& lab) { embedding_case(lab, ids, kVocab, 8, 0); });
}

TEST_F(GpuEmbedding, AddsTheTokensOfAnIdInTheirOrder) {
    // 2^24 + 1 - 2^24 in fp32 is 0 or 1 as the order has it.
    constexpr double kLarge = 1 << 24;
    Lab lab(gpu());
    TensorView const dtable = lab.main({1, 8}, Values(8, 0.0));
    Values dx;
    for (double x : {kLarge, 1.0, -kLarge, 1.0}) dx.insert(dx.end(), 8, x);
    gpu().embedding_backward({dtable, lab.ids({0, 0, 0, 0}), lab.compute({4, 8}, dx), 0});
    EXPECT_EQ(lab.values(dtable), Values(8, 1.0));
}

struct LossCase {
    int64_t tokens, vocab, vocab_begin;
    bool in_place = false;
    double stddev = 3;
};

void loss_case(Lab& lab, LossCase const& c) {
    Shape const shape{c.tokens, c.vocab}, column{c.tokens};
    Values weights;
    for (int64_t t = 0; t < c.tokens; ++t) weights.push_back(t % 3 == 1 ? 0 : 0.25 * double(t % 5));
    TensorView const logits = lab.compute(shape, random_bf16(shape.size(), 51, c.stddev));
    TensorView const targets = lab.ids(random_ids(c.tokens, c.vocab_begin + 2 * c.vocab, 52));
    TensorView const max = lab.main(column), sum = lab.main(column), target = lab.main(column), nll = lab.main(column);
    lab.ops.softmax_stats({.max_T = max,
                           .sum_T = sum,
                           .target_T = target,
                           .logits_TV = logits,
                           .targets_T = targets,
                           .vocab_begin = c.vocab_begin});
    for (auto const& [name, view] : {std::pair("max", max), {"sum", sum}, {"target", target}}) lab.result(name, view);

    // Another shard had larger logits.
    Values larger = lab.values(max);
    for (double& x : larger) x += 1.5;
    TensorView const global_max = lab.main(column, larger);
    lab.ops.softmax_rescale({sum, max, global_max});
    lab.result("rescaled sum", sum);

    TensorView const dlogits = c.in_place ? logits : lab.compute(shape);
    CrossEntropy args{.nll_T = nll,
                      .logits_TV = logits,
                      .targets_T = targets,
                      .weights_T = lab.f32(column, weights),
                      .max_T = global_max,
                      .sum_T = sum,
                      .target_T = target,
                      .scale = 0.125,
                      .vocab_begin = c.vocab_begin};
    lab.ops.cross_entropy(args);
    lab.result("nll alone", nll);
    args.dlogits_TV = dlogits;
    lab.ops.cross_entropy(args);
    lab.result("nll", nll);
    lab.result("dlogits", dlogits);
}

TEST_F(GpuLoss, MatchesTheHost) {
    for (LossCase const c :
         {LossCase{60, 41, 0}, LossCase{33, 4096, 0}, LossCase{20, 16384, 16384}, LossCase{7, 128256, 0, true},
          LossCase{9, 50257, 3, true}, LossCase{40, 8, 8, true}, LossCase{12, 2048, 0, true, 30.0}}) {
        SCOPED_TRACE(fmt::format("{} x {} from {}, in place {}", c.tokens, c.vocab, c.vocab_begin, c.in_place));
        compare([&](Lab& lab) { loss_case(lab, c); });
    }
}

TEST_F(GpuLoss, MinusInfinityIsALogitOfProbabilityZero) {
    constexpr double kNone = -std::numeric_limits<double>::infinity();
    constexpr int64_t kVocab = 20000;  // several rounds of every thread
    Values logits(kVocab, kNone);
    logits[12345] = 2;
    logits[19999] = 1;
    Lab lab(gpu());
    TensorView const max = lab.main({1}), sum = lab.main({1}), target = lab.main({1});
    gpu().softmax_stats({.max_T = max,
                         .sum_T = sum,
                         .target_T = target,
                         .logits_TV = lab.compute({1, kVocab}, logits),
                         .targets_T = lab.ids({19999})});
    EXPECT_EQ(lab.values(max), Values{2});
    EXPECT_NEAR(lab.values(sum)[0], 1 + std::exp(-1), 1e-6);
    EXPECT_EQ(lab.values(target), Values{1});
}

TEST_F(GpuLoss, ANaNLogitShows) {
    for (int64_t at : {0, 77, 999}) {
        Values logits = random_bf16(1000, 53);
        logits[static_cast<size_t>(at)] = std::numeric_limits<double>::quiet_NaN();
        Lab lab(gpu());
        TensorView const sum = lab.main({1}, {0});
        gpu().softmax_stats({.max_T = lab.main({1}),
                             .sum_T = sum,
                             .target_T = lab.main({1}),
                             .logits_TV = lab.compute({1, 1000}, logits),
                             .targets_T = lab.ids({3})});
        EXPECT_TRUE(std::isnan(lab.values(sum)[0]));
    }
}

}  // namespace

}  // namespace perigee::testing
