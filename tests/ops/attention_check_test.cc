// The check that a library's attention must pass before it is trusted: right results pass, every kind of wrong one is
// found and named.
#include "ops/attention_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kHeads = 4, kKvHeads = 2;

/// Over either pack of documents.
class AttentionCheck : public ::testing::TestWithParam<bool> {
  protected:
    std::unique_ptr<Device> device_ = make_host_device();
    std::unique_ptr<Ops> ops_ = make_host_ops(*device_, 2);
    AttentionPasses right_{.compute = DType::f32,
                           .forward = [this](AttentionForward const& args) { ops_->attention_forward(args); },
                           .backward = [this](AttentionBackward const& args) { ops_->attention_backward(args); }};

    std::span<int32_t const> documents() const {
        return GetParam() ? std::span<int32_t const>(kEqualDocuments) : kRaggedDocuments;
    }
    double check(AttentionPasses const& passes) {
        AttentionShape const shape{
            .heads = kHeads, .kv_heads = kKvHeads, .head_dim = 64, .scale = 0.125, .documents = documents()};
        return check_attention(*device_, shape, passes, "library 1.2");
    }

    /// What the message must say besides who is wrong.
    void expect_found(AttentionPasses const& passes, char const* result) {
        try {
            check(passes);
            FAIL() << "passed";
        } catch (UnusableAttention const& e) {
            EXPECT_EQ(e.category(), Category::internal);
            EXPECT_THAT(e.what(), AllOf(HasSubstr("library 1.2"), HasSubstr(fmt::format(": {} is off", result))));
        }
    }
};

TEST_P(AttentionCheck, RightResultsPass) {
    EXPECT_LT(check(right_), 1e-5);
    EXPECT_LT(check({.compute = DType::f32, .forward = right_.forward}), 1e-5);
    EXPECT_LT(check({.compute = DType::f32, .backward = right_.backward}), 1e-5);
}

TEST_P(AttentionCheck, FindsDocumentsThatSeeTheirNeighbours) {
    auto const merge = [](auto pass) {
        return [pass](auto const& args) {
            std::vector<int32_t> borders(args.cu_seqlens.begin(), args.cu_seqlens.end());
            borders.erase(borders.end() - 2);
            auto merged = args;
            merged.cu_seqlens = borders;
            pass(merged);
        };
    };
    expect_found({.compute = DType::f32, .forward = merge(right_.forward)}, "o");
    expect_found({.compute = DType::f32, .backward = merge(right_.backward)}, "dq");
}

TEST_P(AttentionCheck, FindsAnotherScale) {
    auto const rescaled = [](auto pass) {
        return [pass](auto args) {
            args.scale *= 1.1;
            pass(args);
        };
    };
    expect_found({.compute = DType::f32, .forward = rescaled(right_.forward)}, "o");
    expect_found({.compute = DType::f32, .backward = rescaled(right_.backward)}, "dq");
}

TEST_P(AttentionCheck, FindsATokenThatWasNotWritten) {
    for (int64_t token : {0, 100, documents().back() - 1}) {
        expect_found({.compute = DType::f32,
                      .forward =
                          [&](AttentionForward const& args) {
                              right_.forward(args);
                              args.lse_TH.as<float>()[token * kHeads] = std::nanf("");
                          }},
                     "lse");
        expect_found({.compute = DType::f32,
                      .backward =
                          [&](AttentionBackward const& args) {
                              right_.backward(args);
                              args.dk_TGK.as<float>()[token * kKvHeads * 64 + 5] = std::nanf("");
                          }},
                     "dk");
    }
}

TEST_P(AttentionCheck, FindsAnErrorInOneShortDocument) {
    expect_found({.compute = DType::f32,
                  .backward =
                      [&](AttentionBackward const& args) {
                          right_.backward(args);
                          for (int64_t i = 0; i < args.dv_TGK.size(); ++i)
                              if (i < kKvHeads * 64) args.dv_TGK.as<float>()[i] *= 1.1f;
                      }},
                 "dv");
}

TEST_P(AttentionCheck, AnErrorOfTheDeviceIsNotTakenForWrongResults) {
    AttentionPasses passes = right_;
    passes.backward = [](AttentionBackward const&) { fail(Category::internal, "the device failed"); };
    try {
        check(passes);
        FAIL() << "passed";
    } catch (UnusableAttention const& e) {
        FAIL() << "taken for wrong results: " << e.what();
    } catch (Error const& e) {
        EXPECT_STREQ(e.what(), "the device failed");
    }
}

INSTANTIATE_TEST_SUITE_P(Packs, AttentionCheck, ::testing::Bool(),
                         [](auto const& of) { return of.param ? "Equal" : "Ragged"; });

}  // namespace
}  // namespace perigee
