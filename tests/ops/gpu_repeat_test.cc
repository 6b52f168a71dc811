// Operations that repeat on a GPU: from the third time of a key on, their graph is queued, on what the memory holds
// then.
#include "ops/gpu_case.h"

namespace perigee::testing {

namespace {

using GpuRepeat = GpuTest;

TEST_F(GpuRepeat, ReplaysOnWhatTheMemoryHolds) {
    Lab lab(gpu());
    TensorView const sum = lab.main({1000}, Values(1000, 0.0)), x = lab.main({1000});
    std::vector<int64_t> const key = {1, 2, 3};
    int bodies = 0;
    Values expected(1000, 0.0);
    for (int i = 0; i < 6; ++i) {
        Values const values = random_sixteenths(1000, 80 + static_cast<uint64_t>(i));
        for (size_t j = 0; j < values.size(); ++j) expected[j] += values[j];
        std::vector<float> const floats(values.begin(), values.end());
        gpu().upload(x, floats.data());
        gpu().repeat(key, [&] {
            ++bodies;
            gpu().add(sum, x);
        });
        ASSERT_EQ(lab.values(sum), expected) << "time " << i;
    }
    EXPECT_EQ(bodies, 2) << "the first time and the capture";
}

TEST_F(GpuRepeat, OtherKeysAndForgottenOnesAreNotReplayed) {
    Lab lab(gpu());
    TensorView const sum = lab.main({1}, {0.0}), one = lab.main({1}, {1.0});
    int bodies = 0;
    auto const once = [&](int64_t key) {
        gpu().repeat(std::vector{key}, [&] {
            ++bodies;
            gpu().add(sum, one);
        });
    };
    for (int64_t key = 0; key < 40; ++key) once(key);  // more than are kept
    EXPECT_EQ(bodies, 40);
    for (int i = 0; i < 3; ++i) once(39);
    EXPECT_EQ(bodies, 41) << "the capture";
    for (int i = 0; i < 3; ++i) once(0);
    EXPECT_EQ(bodies, 43) << "the first time and the capture: 39 others came in between";
    gpu().forget_repeated();
    for (int i = 0; i < 3; ++i) once(39);
    EXPECT_EQ(bodies, 45);
    EXPECT_EQ(lab.values(sum), Values{49});
}

TEST_F(GpuRepeat, ScratchThatMovedIsNotWrittenByAGraph) {
    Lab lab(gpu());
    Values const small = random_bf16(64 * 8, 90), large = random_bf16(20000 * 8, 91);
    TensorView const ids = lab.ids(random_ids(64, 50, 92)), dx = lab.compute({64, 8}, small);
    TensorView const many = lab.ids(random_ids(20000, 50, 93)), rows = lab.compute({20000, 8}, large);
    TensorView const once = lab.main({50, 8}, Values(400, 0.0)), repeated = lab.main({50, 8}, Values(400, 0.0));
    int bodies = 0;
    for (int i = 0; i < 6; ++i) {
        gpu().embedding_backward({once, ids, dx, 0});
        gpu().repeat(std::vector<int64_t>{7}, [&] {
            ++bodies;
            gpu().embedding_backward({repeated, ids, dx, 0});
        });
        if (i == 3) gpu().embedding_backward({lab.main({50, 8}, Values(400, 0.0)), many, rows, 0});
    }
    EXPECT_EQ(lab.values(repeated), lab.values(once));
    EXPECT_EQ(bodies, 4) << "the first time and the capture, twice, as the scratch memory has grown in between";
}

/// Full attention over a pack, and what is found of it.
class Pack {
  public:
    Pack(Ops& ops, std::vector<int32_t> borders, uint64_t seed)
        : lab_(ops),
          borders_(std::move(borders)),
          q_(random(kHeads, seed)),
          k_(random(kHeads / 2, seed + 1)),
          v_(random(kHeads / 2, seed + 2)),
          o_(lab_.compute(q_.shape)),
          lse_(lab_.main({q_.shape[0], kHeads})) {}

    void attend() {
        lab_.ops.attention_forward(
            {.o_THK = o_, .lse_TH = lse_, .q_THK = q_, .k_TGK = k_, .v_TGK = v_, .cu_seqlens = borders_, .scale = 0.1});
    }
    void forget() {
        lab_.ops.fill_zero(o_);
        lab_.ops.fill_zero(lse_);
    }
    std::pair<Values, Values> found() { return {lab_.values(o_), lab_.values(lse_)}; }

  private:
    static constexpr int64_t kHeads = 4, kWidth = 64;
    TensorView random(int64_t heads, uint64_t seed) {
        int64_t const tokens = borders_.back();
        return lab_.compute({tokens, heads, kWidth}, random_bf16(tokens * heads * kWidth, seed));
    }

    Lab lab_;
    std::vector<int32_t> borders_;
    TensorView q_, k_, v_, o_, lse_;
};

TEST_F(GpuRepeat, MoreDocumentsThanEverAreNoEndOfReplays) {
    std::pair<std::vector<int32_t>, int32_t> const packs[] = {{{0, 100, 300, 640}, 100}, {{0, 512, 1024}, 1000}};
    for (auto const& [borders, documents] : packs) {
        std::vector<int32_t> many;
        for (int32_t i = 0; i <= documents; ++i) many.push_back(7 * i);
        Pack pack(gpu(), borders, 94), other(gpu(), {0, 50, 600}, 97), large(gpu(), many, 100);
        pack.attend();
        auto const expected = pack.found();
        int bodies = 0;
        for (int i = 0; i < 6; ++i) {
            (i == 3 ? large : other).attend();
            pack.forget();
            gpu().repeat(std::vector<int64_t>(borders.begin(), borders.end()), [&] {
                ++bodies;
                pack.attend();
            });
            EXPECT_EQ(pack.found(), expected) << "time " << i;
        }
        EXPECT_LE(bodies, 4) << "the first time and the capture, and again where tables have moved";
    }
}

TEST_F(GpuRepeat, WhatCannotBeCapturedIsQueuedAsEver) {
    Lab lab(gpu());
    TensorView const sum = lab.main({1}, {0.0}), x = lab.main({1}, {1.0});
    int bodies = 0;
    for (int i = 0; i < 5; ++i)
        gpu().repeat(std::vector<int64_t>{1}, [&] {
            ++bodies;
            float const one = 1;
            gpu().add(sum, x);
            gpu().upload(x, &one);
            gpu().add(sum, x);
        });
    EXPECT_EQ(lab.values(sum), Values{10});
    EXPECT_EQ(bodies, 6) << "once more for the capture";
    float const two = 2;
    for (int i = 0; i < 100; ++i) gpu().upload(x, &two);  // every slot of the staging ring is as before
    EXPECT_EQ(lab.values(x), Values{2});
}

}  // namespace

}  // namespace perigee::testing
