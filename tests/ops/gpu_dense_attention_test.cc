// cuDNN's attention is checked before it is used, once for each plan, and not used where the check fails.
#include "ops/cuda/dense_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/gpu_case.h"

namespace perigee::testing {

namespace {

using ::testing::HasSubstr;

class GpuDenseAttention : public GpuTest {
  protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (IsSkipped()) return;
        if (DenseAttention::version() == "no cuDNN") GTEST_SKIP() << "no cuDNN";
        device_ = std::make_unique<CudaDevice>(0);
        staging_ = std::make_unique<Staging>(*device_);
    }

    DenseAttention make(DenseAttention::Check check) {
        return {*device_, *staging_,
                [this](size_t bytes) {
                    if (scratch_.bytes() < bytes) scratch_ = Buffer(*device_, bytes);
                    return scratch_.data();
                },
                std::move(check)};
    }
    static constexpr unsigned char kValue = 0x3f;  ///< twice, the bf16 0.746
    TensorView heads(int64_t tokens, int64_t heads, unsigned char value = kValue) {
        auto const bytes = static_cast<size_t>(tokens * heads * 64 * size_of(DType::bf16));
        Buffer const& buffer = buffers_.emplace_back(*device_, bytes);
        std::vector<unsigned char> const values(bytes, value);
        device_->copy(buffer.data(), values.data(), bytes);
        return {static_cast<std::byte*>(buffer.data()), DType::bf16, {tokens, heads, 64}};
    }
    /// One document of so many tokens.
    TensorView attend(DenseAttention& attention, int32_t tokens) {
        return attend(attention, std::vector<int32_t>{0, tokens});
    }
    TensorView attend(DenseAttention& attention, std::vector<int32_t> const& borders) {
        int64_t const tokens = borders.back();
        Buffer const lse(*device_, static_cast<size_t>(tokens * 4) * sizeof(float));
        TensorView const o = heads(tokens, 4, 0xff);
        attention.forward({.o_THK = o,
                           .lse_TH = {static_cast<std::byte*>(lse.data()), DType::f32, {tokens, 4}},
                           .q_THK = heads(tokens, 4),
                           .k_TGK = heads(tokens, 2),
                           .v_TGK = heads(tokens, 2),
                           .cu_seqlens = borders,
                           .scale = 0.125});
        device_->synchronize();
        return o;
    }
    /// Whether every element is the one value of v.
    bool is_mean_of_v(TensorView o) {
        std::vector<unsigned char> found(static_cast<size_t>(o.bytes()));
        device_->copy(found.data(), o.data, found.size());
        return std::ranges::all_of(found, [](unsigned char byte) { return byte == kValue; });
    }

    std::unique_ptr<CudaDevice> device_;
    std::unique_ptr<Staging> staging_;
    Buffer scratch_;
    std::vector<Buffer> buffers_;
};

TEST_F(GpuDenseAttention, IsCheckedOnceForEachPlanAndAgreesWithTheOracle) {
    std::vector<double> errors;
    auto attention = make([&](auto&&... args) {
        errors.push_back(check_attention(args...));
        return errors.back();
    });
    attend(attention, 500);
    attend(attention, 1000);  // the same plan
    EXPECT_EQ(errors.size(), 1u);
    attend(attention, 3000);  // needs a larger one
    ASSERT_EQ(errors.size(), 2u);
    for (double error : errors) {
        EXPECT_GT(error, 0);
        EXPECT_LT(error, 0.01);
    }
}

TEST_F(GpuDenseAttention, DocumentsOfOneLengthHaveAKernelOfTheirOwn) {
    std::vector<size_t> checked;  // documents
    auto attention = make([&](Device& device, AttentionShape const& shape, auto&&... args) {
        checked.push_back(shape.documents.size() - 1);
        return check_attention(device, shape, args...);
    });
    size_t const ragged = kRaggedDocuments.size() - 1, equal = kEqualDocuments.size() - 1;
    for (std::vector<int32_t> const& borders :
         {std::vector<int32_t>{0, 0, 512}, {0, 512, 1024, 1500}, {0, 384, 768}, {0, 513}, {0, 512, 1024, 1024}})
        attend(attention, borders);
    ASSERT_EQ(checked, (std::vector<size_t>{ragged, ragged})) << "up to 1024 tokens, and more";
    attend(attention, 512);
    attend(attention, 512);
    ASSERT_EQ(checked, (std::vector<size_t>{ragged, ragged, equal}));
    attend(attention, {0, 512, 1024});
    attend(attention, {0, 640, 1280});
    EXPECT_LE(checked.size(), 5u) << "at most once for each shape";
}

TEST_F(GpuDenseAttention, WrongResultsStopTheRunBeforeTheFirstUseAndEveryLaterOne) {
    auto attention = make([&](Device& device, AttentionShape const& shape, AttentionPasses passes, auto const& name) {
        passes.forward = [&device, right = passes.forward](AttentionForward const& args) {
            right(args);
            bf16 const zero{};
            for (int64_t i = 0; i < 64; ++i) device.copy(args.o_THK.as<bf16>() + i, &zero, sizeof zero);
        };
        return check_attention(device, shape, passes, name);
    });
    for (int32_t const tokens : {500, 500, 512, 512}) try {
            attend(attention, tokens);
            FAIL() << "used";
        } catch (Error const& e) {
            EXPECT_EQ(e.category(), Category::internal);
            EXPECT_THAT(e.what(), HasSubstr(DenseAttention::version()));
            EXPECT_THAT(e.what(), HasSubstr("o is off"));
        }
}

TEST_F(GpuDenseAttention, WhereOnlyEqualDocumentsFailTheRaggedPlanTakesThem) {
    std::vector<size_t> checked;  // documents
    auto attention = make([&](Device& device, AttentionShape const& shape, auto&&... args) {
        checked.push_back(shape.documents.size() - 1);
        if (checked.back() == kEqualDocuments.size() - 1) throw UnusableAttention("wrong");
        return check_attention(device, shape, args...);
    });
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(is_mean_of_v(attend(attention, {0, 512, 1024})));
    EXPECT_EQ(checked, (std::vector<size_t>{kEqualDocuments.size() - 1, kRaggedDocuments.size() - 1}));
}

TEST_F(GpuDenseAttention, RefusalsOfEitherPlanAreToldFromErrors) {
    auto attention = make([](auto&&...) {
        ADD_FAILURE() << "there is nothing to check";
        return 0.0;
    });
    auto const of_four = [](TensorView x) { return TensorView{x.data, x.dtype, {x[0], x[1] * 16, 4}}; };
    std::vector<int32_t> const borders = {0, 512};
    Buffer const lse(*device_, 512 * 64 * sizeof(float));
    for (int i = 0; i < 2; ++i) try {
            attention.forward({.o_THK = of_four(heads(512, 4)),
                               .lse_TH = {static_cast<std::byte*>(lse.data()), DType::f32, {512, 64}},
                               .q_THK = of_four(heads(512, 4)),
                               .k_TGK = of_four(heads(512, 2)),
                               .v_TGK = of_four(heads(512, 2)),
                               .cu_seqlens = borders,
                               .scale = 0.5});
            FAIL() << "a head size of 4 was taken";
        } catch (UnusableAttention const& e) {
            EXPECT_THAT(e.what(), HasSubstr("cuDNN refuses attention"));
        }
}

TEST_F(GpuDenseAttention, AnErrorInTheCheckOfEqualDocumentsIsNoRefusal) {
    int checks = 0;
    auto attention = make([&](Device& device, AttentionShape const& shape, auto&&... args) {
        EXPECT_EQ(shape.documents.size(), kEqualDocuments.size()) << "the ragged plan";
        if (++checks < 3) check_cuda(cudaErrorLaunchFailure, "a kernel");
        return check_attention(device, shape, args...);
    });
    for (int i = 0; i < 2; ++i) try {
            attend(attention, 512);
            FAIL() << "went on";
        } catch (Error const& e) {
            EXPECT_THAT(e.what(), HasSubstr("a kernel failed"));
        }
    EXPECT_TRUE(is_mean_of_v(attend(attention, 512)));  // nothing was concluded from them
    EXPECT_EQ(checks, 3);
}

}  // namespace

}  // namespace perigee::testing
