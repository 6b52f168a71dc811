// An optimizer whose model computes in bf16, on the CPU: its operations keep fp32 and hand the model rounded weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "commands/bench/timed_ops.h"
#include "optim/global_norm.h"
#include "optim/optimizer.h"
#include "support/random.h"

namespace perigee {
namespace {

using testing::random_normal;

/// The host's operations, and a model in bf16.
class NarrowOps : public TimedOps {
  public:
    using TimedOps::TimedOps;
    DType compute_dtype() const override { return DType::bf16; }
};

std::vector<ParamSpec> rounded_params() {
    return {{.name = "embed", .shape = {130, 80}},
            {.name = "norm", .shape = {80}, .decay = false, .unit = 1},
            {.name = "q", .shape = {80, 80}, .unit = 1}};
}

constexpr uint64_t kSeed = 77;

class StochasticRoundingOfWeights : public ::testing::Test {
  protected:
    struct Run {
        Run(StochasticRoundingOfWeights& test, Ownership const& ownership, uint64_t seed = kSeed)
            : model(static_cast<size_t>(test.layout_.size())),
              optimizer({.stochastic_rounding = true}, test.layout_, ownership,
                        testing::parts_of(ownership.updated, TensorView(reinterpret_cast<std::byte*>(model.data()),
                                                                        DType::bf16, {test.layout_.size()})),
                        test.ops_, seed) {
            auto const start = random_normal<float>(test.layout_.size(), 4, 0.02);
            for (FlatPart const& part : optimizer.weights())
                std::copy(start.begin() + part.range.begin, start.begin() + part.range.end, part.values.as<float>());
        }
        std::vector<uint16_t> bits() const {
            std::vector<uint16_t> bits;
            for (bf16 x : model) bits.push_back(x.bits);
            return bits;
        }
        std::vector<bf16> model;
        AdamWOptimizer optimizer;
    };

    void update(Run& run, int begin, int end) {
        for (int step = begin; step < end; ++step) {
            auto g = random_normal<float>(layout_.size(), 300 + static_cast<uint64_t>(step));
            testing::update(run.optimizer, layout_, TensorView(g.data(), {layout_.size()}), 1.0, 1e-5, step);
        }
    }

    std::unique_ptr<Device> device_ = make_host_device();
    std::unique_ptr<Ops> host_ = make_host_ops(*device_, 2);
    NarrowOps ops_{*host_};
    ParamLayout layout_{rounded_params(), 1, 0};
    Ownership all_{.owned = {layout_.whole()}, .updated = {layout_.whole()}};
};

TEST_F(StochasticRoundingOfWeights, TheModelGetsANeighbourOfEachWeightUnbiasedAndNewDrawsInEachStep) {
    Run run(*this, all_);
    std::vector<uint16_t> before;
    for (int step = 0; step < 3; ++step) {
        update(run, step, step + 1);
        TensorView const weights = run.optimizer.weights()[0].values;
        int64_t up = 0;
        double expected = 0;
        for (size_t i = 0; i < run.model.size(); ++i) {
            auto const exact = std::bit_cast<uint32_t>(weights.as<float>()[i]);
            uint32_t const place = (uint32_t{run.model[i].bits} << 16) - (exact & 0xffff0000u);
            ASSERT_TRUE(place == 0 || place == 0x10000u);
            up += place != 0;
            expected += (exact & 0xffffu) / 65536.0;
        }
        EXPECT_NEAR(static_cast<double>(up), expected, 5 * std::sqrt(0.25 * static_cast<double>(run.model.size())));
        EXPECT_NE(run.bits(), before);
        before = run.bits();
    }
}

TEST_F(StochasticRoundingOfWeights, IsAFunctionOfSeedTensorElementAndUpdate) {
    Run first(*this, all_), again(*this, all_), other(*this, all_, kSeed + 1);
    for (Run* run : {&first, &again, &other}) update(*run, 0, 3);
    EXPECT_EQ(first.bits(), again.bits());
    EXPECT_NE(first.bits(), other.bits());
    // Of two tensors with equal values at equal places, and of two updates of equal weights.
    Run constant(*this, all_);
    TensorView const weights = constant.optimizer.weights()[0].values;
    std::fill_n(weights.as<float>(), weights.size(), 1.001f);
    constant.optimizer.publish(1);
    auto const one = constant.bits();
    EXPECT_FALSE(std::equal(one.begin(), one.begin() + 6400, one.begin() + 130 * 80 + 80));
    constant.optimizer.publish(2);
    EXPECT_NE(constant.bits(), one);
}

TEST_F(StochasticRoundingOfWeights, PublishingSavedWeightsGivesTheBitsOfTheUnbrokenRun) {
    Run unbroken(*this, all_), resumed(*this, all_);
    update(unbroken, 0, 5);
    ops_.copy(resumed.optimizer.weights()[0].values, unbroken.optimizer.weights()[0].values);
    resumed.optimizer.publish(5);
    EXPECT_EQ(resumed.bits(), unbroken.bits());
}

TEST_F(StochasticRoundingOfWeights, OptimizersOfPartsRoundAsOneOfTheWhole) {
    int64_t const size = layout_.size();
    std::vector<FlatRange> const cuts[] = {{{0, 5}, {10404, 10500}, {12001, 12002}},
                                           {{5, 10404}, {10500, 12001}, {12002, size}}};
    Run whole(*this, all_);
    update(whole, 0, 2);
    for (auto const& cut : cuts) {
        Run part(*this, Ownership{cut, cut});
        update(part, 0, 2);
        for (FlatRange const& range : cut)
            for (auto i = static_cast<size_t>(range.begin); i < static_cast<size_t>(range.end); ++i)
                ASSERT_EQ(part.model[i].bits, whole.model[i].bits) << i;
    }
}

}  // namespace
}  // namespace perigee
