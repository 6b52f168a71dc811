#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "optim/global_norm.h"
#include "support/random.h"

namespace perigee {
namespace {

using testing::global_norm;
using testing::parts_of;
using testing::random_normal;
using testing::update;

/// Three units; matrices between norms and biases, so that equal decay comes in several runs.
std::vector<ParamSpec> some_params() {
    return {{.name = "embed", .shape = {13, 8}},
            {.name = "norm1", .shape = {8}, .decay = false, .unit = 1},
            {.name = "bias", .shape = {24}, .decay = false, .unit = 1},
            {.name = "q", .shape = {8, 8}, .unit = 1},
            {.name = "k", .shape = {4, 8}, .unit = 1},
            {.name = "norm2", .shape = {8}, .decay = false, .unit = 2}};
}

/// AdamW as in Algorithm 2 of Loshchilov & Hutter (2019), element by element in fp64.
struct PlainAdamW {
    OptimizerOptions options;
    std::vector<double> m, v;

    void update(std::vector<double>& w, std::vector<double> const& g, ParamLayout const& layout, double lr, int t) {
        m.resize(w.size());
        v.resize(w.size());
        double squares = 0;
        for (double x : g) squares += x * x;
        double const norm = std::sqrt(squares);
        bool const clip = options.max_grad_norm > 0 && norm > options.max_grad_norm;
        for (auto const& entry : layout.entries()) {
            for (int64_t k = 0; k < entry.local.size(); ++k) {
                auto const i = static_cast<size_t>(entry.offset + k);
                double const grad = clip ? g[i] * options.max_grad_norm / norm : g[i];
                m[i] = options.beta1 * m[i] + (1 - options.beta1) * grad;
                v[i] = options.beta2 * v[i] + (1 - options.beta2) * grad * grad;
                double const m_hat = m[i] / (1 - std::pow(options.beta1, t));
                double const v_hat = v[i] / (1 - std::pow(options.beta2, t));
                double const decay = entry.spec.decay ? options.weight_decay * w[i] : 0;
                w[i] -= lr * (m_hat / (std::sqrt(v_hat) + options.eps) + decay);
            }
        }
    }
};

template <class Real>
TensorView view(std::vector<Real>& x) {
    return TensorView(x.data(), Shape{static_cast<int64_t>(x.size())});
}

template <class Real>
class OptimizerTest : public ::testing::Test {
  protected:
    std::unique_ptr<Ops> make_ops() {
        return std::is_same_v<Real, double> ? make_host_ops_f64(*host, 2) : make_host_ops(*host, 2);
    }
    std::vector<Real> copy_of(std::vector<FlatPart> const& parts) const {
        std::vector<Real> values;
        for (FlatPart const& p : parts)
            values.insert(values.end(), p.values.template as<Real>(), p.values.template as<Real>() + p.values.size());
        return values;
    }
    std::vector<FlatPart> whole(TensorView flat) const { return {{layout.whole(), flat}}; }
    static constexpr double kTolerance = std::is_same_v<Real, double> ? 1e-13 : 2e-6;

    std::unique_ptr<Device> host = make_host_device();
    std::unique_ptr<HostComm> world = make_single_host_comm();
    std::unique_ptr<Ops> ops = make_ops();
    ParamLayout layout{some_params(), 1, 0};
    Mesh mesh{{}, *world};
    Ownership all{.owned = {layout.whole()}, .updated = {layout.whole()}};
    std::vector<Real> weights = random_normal<Real>(layout.size(), 21);
    std::vector<Real> grads = random_normal<Real>(layout.size(), 22);
};
using Reals = ::testing::Types<float, double>;
TYPED_TEST_SUITE(OptimizerTest, Reals);

TYPED_TEST(OptimizerTest, FollowsPlainAdamWStepByStepWithAndWithoutClipping) {
    using Real = TypeParam;
    for (double max_norm : {0.0, 5.0, 1e9}) {
        OptimizerOptions const options{.weight_decay = 0.3, .max_grad_norm = max_norm};
        std::vector<Real> w = this->weights;
        AdamWOptimizer optimizer(options, this->layout, this->all, this->whole(view(w)), *this->ops);
        PlainAdamW plain{.options = options, .m = {}, .v = {}};
        std::vector<double> want(w.begin(), w.end());
        for (int step = 0; step < 30; ++step) {
            // Norms from 1.6 to 160 around a limit of 5: some steps are clipped, some are not.
            auto g = random_normal<Real>(this->layout.size(), 100 + static_cast<uint64_t>(step), step % 3 ? 0.1 : 10);
            double const lr = learning_rate({.warmup_steps = 5}, 0.02, step, 30);
            double const norm = global_norm(optimizer, view(g), this->mesh);
            update(optimizer, this->layout, view(g), norm, lr, step);
            plain.update(want, std::vector<double>(g.begin(), g.end()), this->layout, lr, step + 1);
            ASSERT_LT(testing::relative_error(w, want), this->kTolerance) << "step " << step << " limit " << max_norm;
        }
        EXPECT_LT(testing::relative_error(this->copy_of(optimizer.first_moment()), plain.m), this->kTolerance);
        EXPECT_LT(testing::relative_error(this->copy_of(optimizer.second_moment()), plain.v), this->kTolerance);
    }
}

TYPED_TEST(OptimizerTest, WithMomentsOnTheHostGivesTheSameBits) {
    using Real = TypeParam;
    int64_t const size = this->layout.size();
    ASSERT_GT(this->layout.units(), 2);
    Ownership const parts{.owned = {}, .updated = {{1, size / 3}, {size / 3 + 2, size / 2}, {size - 7, size}}};
    for (Ownership const& ownership : {this->all, parts}) {
        std::vector<Real> w[2] = {this->weights, this->weights};
        std::vector<AdamWOptimizer> optimizers;
        for (bool const offload : {false, true}) {
            std::vector<FlatPart> weights;
            for (FlatRange const& range : ownership.updated)
                weights.push_back({range, view(w[offload]).rows(range.begin, range.end)});
            optimizers.emplace_back(OptimizerOptions{.offload = offload}, this->layout, ownership, weights, *this->ops);
        }
        AdamWOptimizer const &kept = optimizers[0], &offloaded = optimizers[1];
        for (int step = 0; step < 6; ++step) {
            auto g = random_normal<Real>(size, 200 + static_cast<uint64_t>(step));
            for (AdamWOptimizer& optimizer : optimizers) {
                if (step % 2 == 0) optimizer.begin_update();
                for (int unit = 0; unit < this->layout.units(); ++unit)
                    optimizer.update(unit, testing::parts_of(ownership.updated, view(g)),
                                     {.norm = 1.0, .lr = 0.01, .applied = step});
                if (step == 3) optimizer.begin_update();  // of a step that is skipped
            }
            ASSERT_EQ(w[1], w[0]) << "step " << step;
        }
        EXPECT_NE(w[0], this->weights);
        EXPECT_EQ(this->copy_of(offloaded.first_moment()), this->copy_of(kept.first_moment()));
        EXPECT_EQ(this->copy_of(offloaded.second_moment()), this->copy_of(kept.second_moment()));
        EXPECT_EQ(offloaded.host_bytes(), kept.bytes());
        EXPECT_EQ(kept.host_bytes(), 0);
    }
}

TYPED_TEST(OptimizerTest, WithoutGradientOnlyDecayedParametersShrink) {
    using Real = TypeParam;
    std::vector<Real> w = this->weights, zero(w.size());
    AdamWOptimizer optimizer({.weight_decay = 0.5}, this->layout, this->all, this->whole(view(w)), *this->ops);
    update(optimizer, this->layout, view(zero), 0.0, 0.1, 0);
    for (auto const& entry : this->layout.entries()) {
        for (int64_t k = 0; k < entry.local.size(); ++k) {
            auto const i = static_cast<size_t>(entry.offset + k);
            double const want = static_cast<double>(this->weights[i]) * (entry.spec.decay ? 0.95 : 1.0);
            EXPECT_NEAR(static_cast<double>(w[i]), want, 1e-6) << entry.spec.name;
            EXPECT_EQ(w[i] == this->weights[i], !entry.spec.decay) << entry.spec.name;
        }
    }
}

TYPED_TEST(OptimizerTest, GlobalNormIsTheEuclideanNormOfAllGradients) {
    AdamWOptimizer optimizer({}, this->layout, this->all, this->whole(view(this->weights)), *this->ops);
    double squares = 0;
    for (auto g : this->grads) squares += static_cast<double>(g) * static_cast<double>(g);
    EXPECT_NEAR(global_norm(optimizer, view(this->grads), this->mesh), std::sqrt(squares), 1e-12);
}

TYPED_TEST(OptimizerTest, OneNonFiniteGradientAnywhereMakesTheNormNonFiniteAndTheUpdateRefused) {
    using Real = TypeParam;
    std::vector<Real> w = this->weights;
    AdamWOptimizer optimizer({}, this->layout, this->all, this->whole(view(w)), *this->ops);
    for (double poison : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
        for (size_t at = 0; at < this->grads.size(); at += 7) {
            std::vector<Real> g = this->grads;
            g[at] = static_cast<Real>(poison);
            double const norm = global_norm(optimizer, view(g), this->mesh);
            ASSERT_FALSE(std::isfinite(norm)) << poison << " at " << at;
            ASSERT_THROW(update(optimizer, this->layout, view(g), norm, 0.1, 0), Error);
            ASSERT_EQ(w, this->weights);
        }
    }
    EXPECT_EQ(this->copy_of(optimizer.first_moment()), std::vector<Real>(this->weights.size()));
    EXPECT_EQ(this->copy_of(optimizer.second_moment()), std::vector<Real>(this->weights.size()));
}

TYPED_TEST(OptimizerTest, UpdatesItsRangesAsTheWholeAndLeavesTheRestAlone) {
    using Real = TypeParam;
    OptimizerOptions const options{.weight_decay = 0.3};
    // Borders inside matrices, at borders of tensors, and of single elements; together everything.
    int64_t const size = this->layout.size();
    std::vector<FlatRange> const cuts[] = {{{0, 5}, {104, 112}, {150, 151}}, {{5, 104}, {112, 150}, {151, size}}};
    std::vector<Real> want = this->weights;
    AdamWOptimizer whole(options, this->layout, this->all, this->whole(view(want)), *this->ops);
    std::vector<std::vector<Real>> found(2, this->weights);
    std::vector<AdamWOptimizer> parts;
    for (size_t i = 0; i < 2; ++i)
        parts.emplace_back(options, this->layout, Ownership{cuts[i], cuts[i]}, parts_of(cuts[i], view(found[i])),
                           *this->ops);
    for (int step = 0; step < 5; ++step) {
        auto g = random_normal<Real>(size, 500 + static_cast<uint64_t>(step));
        update(whole, this->layout, view(g), 30, 0.02, step);
        for (size_t i = 0; i < 2; ++i) update(parts[i], this->layout, view(g), 30, 0.02, step);
    }
    for (size_t i = 0; i < 2; ++i) {
        std::vector<Real> mixed = this->weights;
        for (auto const& r : cuts[i]) std::copy(want.begin() + r.begin, want.begin() + r.end, mixed.begin() + r.begin);
        EXPECT_EQ(found[i], mixed);
        auto const moments = this->copy_of(whole.first_moment());
        for (FlatPart const& part : parts[i].first_moment())
            for (int64_t k = 0; k < part.range.size(); ++k)
                ASSERT_EQ(part.values.template as<Real>()[k], moments[static_cast<size_t>(part.range.begin + k)]);
    }
}

TYPED_TEST(OptimizerTest, RepeatsBitForBitFromSavedMoments) {
    using Real = TypeParam;
    auto run = [&](AdamWOptimizer& optimizer, int begin, int end) {
        for (int step = begin; step < end; ++step) {
            auto g = random_normal<Real>(this->layout.size(), 300 + static_cast<uint64_t>(step));
            update(optimizer, this->layout, view(g), global_norm(optimizer, view(g), this->mesh), 0.01, step);
        }
    };
    std::vector<Real> w = this->weights, resumed = this->weights;
    AdamWOptimizer unbroken({}, this->layout, this->all, this->whole(view(w)), *this->ops);
    AdamWOptimizer first({}, this->layout, this->all, this->whole(view(resumed)), *this->ops);
    AdamWOptimizer second({}, this->layout, this->all, this->whole(view(resumed)), *this->ops);
    run(unbroken, 0, 10);
    run(first, 0, 4);
    this->ops->copy(second.first_moment()[0].values, first.first_moment()[0].values);
    this->ops->copy(second.second_moment()[0].values, first.second_moment()[0].values);
    run(second, 4, 10);
    EXPECT_EQ(w, resumed);
}

}  // namespace
}  // namespace perigee
