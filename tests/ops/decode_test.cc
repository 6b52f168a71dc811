// Decoding on the CPU against training's operations and an fp64 oracle. The same expectations hold on the GPU:
// gpu_decode_test.cc.
#include <gtest/gtest.h>

#include "ops/decode_expectations.h"
#include "ops/project_case.h"

namespace perigee::testing {
namespace {

class Decode : public ::testing::Test {
  protected:
    std::unique_ptr<Device> device_ = make_host_device();
    std::unique_ptr<Ops> f32_ = make_host_ops(*device_, 2);
    std::unique_ptr<Ops> f64_ = make_host_ops_f64(*device_, 2);
};

TEST_F(Decode, SelectsAndAttendsAsTraining) {
    for (DecodeCase const& c : decode_cases()) {
        expect_training(*f32_, c, 1e-5);
        expect_training(*f64_, c, 1e-12);
    }
}

TEST_F(Decode, SelectsByEveryRule) {
    for (Selection const& rule : decode_rules()) expect_training(*f32_, with_rule(rule), 1e-5);
}

TEST_F(Decode, SelectsAndAttendsInOneOperation) {
    expect_both_as_one(*f32_, {.lengths = {333, -1, 95, 700}, .page_size = 16});
}

TEST_F(Decode, AppendWritesTheNewestRowsAndNoOthers) { expect_append_to_write(*f32_); }

TEST_F(Decode, TheFirstHeadsNumberCounts) { expect_first_head_to_count(*f32_); }

TEST_F(Decode, AppendedTokensLeaveTheMeansOfPooling) {
    for (bool const attends : {false, true}) expect_means_of_appends(*f32_, attends);
}

TEST_F(Decode, ProjectsAsTheOperationsThatItIsMadeOf) {
    for (ProjectCase const& c : project_cases()) expect_projection(*f32_, c, 1e-5);
}

TEST_F(Decode, NormedProductsAreTheOperationsThatTheyAreMadeOf) { expect_normed_products(*f32_, 1e-5); }

TEST_F(Decode, EnoughSlotsEqualFullAttentionInEveryBit) { expect_covering_equals_full(*f32_); }

TEST_F(Decode, ResultsDependNeitherOnPagesNorOnOtherSequences) { expect_independence(*f32_); }

TEST_F(Decode, DamageShows) { expect_damage_to_show(*f32_, 1e-5); }

TEST_F(Decode, RefusesWhatDoesNotFit) {
    DecodeCase const c{.lengths = {70}};
    DecodeLab lab(*f32_, c);
    CachePages pages = lab.pages();
    pages.block_size = 48;
    EXPECT_THROW(f32_->pool_blocks({.pages = pages, .first = 0, .count = 1}), Error);
    EXPECT_THROW(f32_->pool_blocks({.pages = lab.pages(), .first = 3, .count = 1}), Error);
    lab.select();
    int32_t const local = 2;
    std::vector<int32_t> const chosen(static_cast<size_t>(lab.chosen_SHS.size()), local);
    f32_->upload(lab.chosen_SHS, chosen.data());
    EXPECT_THROW(lab.attend(false), Error) << "the local block is chosen as a past one";
}

}  // namespace
}  // namespace perigee::testing
