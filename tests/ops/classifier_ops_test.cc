// Embedding, softmax statistics and cross entropy: the operations over the vocabulary.
#include "ops/op_check.h"

namespace perigee::testing {

namespace {

constexpr int64_t kTokens = 60, kVocab = 41;

std::vector<int32_t> random_ids(int64_t count, int64_t vocab, uint64_t seed) {
    Philox const random(seed, Purpose::sample_order);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < count; ++i)
        ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(vocab))));
    return ids;
}
std::vector<float> some_weights(int64_t count) {
    std::vector<float> weights;
    for (int64_t t = 0; t < count; ++t) weights.push_back(t % 3 == 1 ? 0.0f : 0.25f * static_cast<float>(t % 5));
    return weights;
}

/// The loss over shards [0, cut) and [cut, V) of the vocabulary, joined as a tensor-parallel group would. Output: the
/// weighted nll of every token; its gradient must be the same scale for all of them, which `dy` holds.
template <class Real>
OpResult sharded_loss(Ops& ops, int64_t cut, Values const& logits, double scale) {
    std::vector<int32_t> targets = random_ids(kTokens, kVocab, 4);
    std::vector<float> weights = some_weights(kTokens);
    ConstView const targets_T(targets.data(), {kTokens}), weights_T(weights.data(), {kTokens});
    struct Part {
        int64_t begin;
        HostTensor<Real> logits, max, sum, target;
    };
    std::vector<Part> parts;
    for (auto [begin, end] : {std::pair<int64_t, int64_t>(0, cut), std::pair<int64_t, int64_t>(cut, kVocab)}) {
        Values columns;
        for (int64_t t = 0; t < kTokens; ++t)
            for (int64_t v = begin; v < end; ++v) columns.push_back(logits[static_cast<size_t>(t * kVocab + v)]);
        Shape const column{kTokens};
        Part& part =
            parts.emplace_back(Part{begin, HostTensor<Real>({kTokens, end - begin}, columns), HostTensor<Real>(column),
                                    HostTensor<Real>(column), HostTensor<Real>(column)});
        ops.softmax_stats({.max_T = part.max.view(),
                           .sum_T = part.sum.view(),
                           .target_T = part.target.view(),
                           .logits_TV = part.logits.view(),
                           .targets_T = targets_T,
                           .vocab_begin = begin});
    }
    HostTensor<Real> max({kTokens}), sum({kTokens}), target({kTokens}), nll({kTokens});
    for (size_t t = 0; t < kTokens; ++t) max.values[t] = std::max(parts[0].max.values[t], parts[1].max.values[t]);
    for (Part& part : parts) ops.softmax_rescale({part.sum.view(), part.max.view(), max.view()});
    for (size_t t = 0; t < kTokens; ++t) {
        sum.values[t] = parts[0].sum.values[t] + parts[1].sum.values[t];
        target.values[t] = parts[0].target.values[t] + parts[1].target.values[t];
    }
    Values gradient(logits.size());
    for (Part& part : parts) {
        ops.cross_entropy({.nll_T = nll.view(),
                           .dlogits_TV = part.logits.view(),
                           .logits_TV = part.logits.view(),
                           .targets_T = targets_T,
                           .weights_T = weights_T,
                           .max_T = max.view(),
                           .sum_T = sum.view(),
                           .target_T = target.view(),
                           .scale = scale,
                           .vocab_begin = part.begin});
        int64_t const columns = part.logits.shape[1];
        for (int64_t t = 0; t < kTokens; ++t)
            for (int64_t v = 0; v < columns; ++v)
                gradient[static_cast<size_t>(t * kVocab + part.begin + v)] =
                    part.logits.values[static_cast<size_t>(t * columns + v)];
    }
    Values weighted = nll.wide();
    for (size_t t = 0; t < kTokens; ++t) weighted[t] *= weights[t];
    return {.y = weighted, .gradients = {gradient}};
}

TEST(CrossEntropy, GradientIsThatOfTheWeightedLoss) {
    auto const device = make_host_device();
    auto const ops = make_host_ops_f64(*device, 2);
    Values logits = random_normal<double>(kTokens * kVocab, 11, 3.0);
    OpResult const r = sharded_loss<double>(*ops, 17, logits, 0.7);
    auto const f = [&] {
        double sum = 0;
        for (double nll : sharded_loss<double>(*ops, 17, logits, 0.7).y) sum += 0.7 * nll;
        return sum;
    };
    EXPECT_LT(gradient_error(f, logits, r.gradients[0], 12), 1e-6);
}

TEST(CrossEntropy, ShardsOfTheVocabularyAgreeWithOnePart) {
    auto const device = make_host_device();
    auto const ops = make_host_ops_f64(*device, 2);
    Values const logits = random_normal<double>(kTokens * kVocab, 13, 3.0);
    OpResult const one = sharded_loss<double>(*ops, kVocab - 1, logits, 1.0);
    OpResult const two = sharded_loss<double>(*ops, 5, logits, 1.0);
    EXPECT_LT(relative_error(two.y, one.y), 1e-14);
    EXPECT_LT(relative_error(two.gradients[0], one.gradients[0]), 1e-13);
}

TEST(CrossEntropy, Fp32AgreesWithFp64AndOnAnyNumberOfThreads) {
    auto const device = make_host_device();
    std::vector<float> const rounded = random_normal<float>(kTokens * kVocab, 14, 3.0);
    Values const logits(rounded.begin(), rounded.end());
    OpResult const exact = sharded_loss<double>(*make_host_ops_f64(*device, 2), 17, logits, 1.0);
    OpResult const two = sharded_loss<float>(*make_host_ops(*device, 2), 17, logits, 1.0);
    OpResult const one = sharded_loss<float>(*make_host_ops(*device, 1), 17, logits, 1.0);
    EXPECT_LT(relative_error(two.y, exact.y), 1e-5);
    EXPECT_LT(relative_error(two.gradients[0], exact.gradients[0]), 1e-5);
    EXPECT_EQ(one.y, two.y);
    EXPECT_EQ(one.gradients, two.gradients);
}

TEST(CrossEntropy, SmallTermsOfALargeVocabularyCount) {
    int64_t constexpr vocab = 131072;
    HostTensor<float> logits({1, vocab}, Values(vocab, -17.0)), max({1}), sum({1}), target({1});
    logits.values[5] = 0;
    std::vector<int32_t> const targets = {5};
    auto const device = make_host_device();
    make_host_ops(*device, 1)
        ->softmax_stats({.max_T = max.view(),
                         .sum_T = sum.view(),
                         .target_T = target.view(),
                         .logits_TV = logits.view(),
                         .targets_T = ConstView(targets.data(), {1})});
    double const right = 1 + static_cast<double>(vocab - 1) * std::exp(-17.0);  // each term is below half a bit of 1
    EXPECT_NEAR(sum.values[0] / right, 1, 1e-6);
}

TEST(CrossEntropy, MaskedTokensGiveZeroEvenWhereLogitsAreNotFinite) {
    auto const device = make_host_device();
    auto const ops = make_host_ops(*device, 2);
    Values logits = random_normal<double>(kTokens * kVocab, 15);
    for (int64_t v = 0; v < kVocab; ++v) logits[static_cast<size_t>(1 * kVocab + v)] = NAN;  // token 1 weighs nothing
    OpResult const r = sharded_loss<float>(*ops, 17, logits, 1.0);
    EXPECT_EQ(r.y[1], 0);
    for (int64_t v = 0; v < kVocab; ++v) EXPECT_EQ(r.gradients[0][static_cast<size_t>(kVocab + v)], 0);
    for (double nll : r.y) EXPECT_TRUE(std::isfinite(nll));
}

template <class Real>
OpResult embedding(Ops& ops, int64_t vocab, int64_t width, std::vector<Values> const& inputs, Values const& dy) {
    std::vector<int32_t> ids = random_ids(200, vocab, 6);
    ConstView const ids_T(ids.data(), {200});
    HostTensor<Real> table({vocab, width}, inputs[0]), x({200, width}), dx({200, width}, dy);
    Accumulator<Real> dtable({vocab, width});
    ops.embedding_forward({x.view(), ids_T, table.view(), 0});
    ops.embedding_backward({dtable.view(), ids_T, dx.view(), 0});
    return {.y = x.wide(), .gradients = {dtable.added()}};
}

/// The same over the shards [0, cut) and [cut, V) of the table, whose partial rows are added.
OpResult sharded_embedding(Ops& ops, int64_t vocab, int64_t cut, int64_t width, Values const& table, Values const& dy) {
    std::vector<int32_t> ids = random_ids(200, vocab, 6);
    ConstView const ids_T(ids.data(), {200});
    OpResult sum{.y = Values(static_cast<size_t>(200 * width)), .gradients = {{}}};
    for (auto [begin, end] : {std::pair<int64_t, int64_t>(0, cut), std::pair<int64_t, int64_t>(cut, vocab)}) {
        HostTensor<double> part({end - begin, width}, slice(table, begin * width, (end - begin) * width));
        HostTensor<double> x({200, width}), dx({200, width}, dy);
        Accumulator<double> dpart({end - begin, width});
        ops.embedding_forward({x.view(), ids_T, part.view(), begin});
        ops.embedding_backward({dpart.view(), ids_T, dx.view(), begin});
        for (size_t i = 0; i < sum.y.size(); ++i) sum.y[i] += x.values[i];
        std::ranges::copy(dpart.added(), std::back_inserter(sum.gradients[0]));
    }
    return sum;
}

TEST(Embedding, ShardsOfTheVocabularyAddUpToTheWhole) {
    auto const device = make_host_device();
    auto const ops = make_host_ops_f64(*device, 2);
    Values const table = random_normal<double>(9 * 130, 42), dy = random_normal<double>(200 * 130, 43);
    OpResult const whole = embedding<double>(*ops, 9, 130, {table}, dy);
    for (int64_t cut : {0, 1, 5, 9}) {
        OpResult const parts = sharded_embedding(*ops, 9, cut, 130, table, dy);
        EXPECT_EQ(parts.y, whole.y) << cut;
        EXPECT_EQ(parts.gradients, whole.gradients) << cut;
    }
}

TEST(Embedding, GradientsAndPrecision) {
    auto const run = []<class Real>(Real) {
        return [](Ops& ops, std::vector<Values> const& x, Values const& dy) {
            return embedding<Real>(ops, 9, 130, x, dy);
        };
    };
    OpCheck{run(double()), run(float()), {9 * 130}, 200 * 130}.run(41);
}

}  // namespace

}  // namespace perigee::testing
