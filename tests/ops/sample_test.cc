// SampleTokens on the CPU draws the same tokens as draw_token().
#include "ops/sample_case.h"

namespace perigee::testing {
namespace {

class SampleTokensOnHost : public ::testing::Test {
  protected:
    std::unique_ptr<Device> device_ = make_host_device();
    std::unique_ptr<Ops> ops_ = make_host_ops(*device_, 2);
};

TEST_F(SampleTokensOnHost, DrawsWhatTheRuleSaysAndNotesIt) {
    SampleCase const c{.width = 1010, .seen = true};
    auto const rules = draw_rules(0);
    Drawn const drawn = draw_all(*ops_, c, rules);
    Values const values = random_bf16(std::ssize(rules) * c.width, 40, c.spread);
    int64_t penalised = 0;
    for (size_t row = 0; row < rules.size(); ++row) {
        auto const begin = values.begin() + static_cast<int64_t>(row) * c.width;
        std::vector<float> const logits(begin, begin + c.allowed);
        std::vector<int32_t> seen;
        for (int32_t id = 0; id < c.allowed; ++id) {
            size_t const word = row * 32 + static_cast<size_t>(id / 32);
            if (word % 3 == 0 && (0x10410411 >> id % 32 & 1) != 0) seen.push_back(id);
        }
        ASSERT_EQ(drawn.ids[row], draw_token(logits, rules[row], seen)) << row;
        penalised += drawn.ids[row] != draw_token(logits, rules[row]);
        size_t const word = row * 32 + static_cast<size_t>(drawn.ids[row] / 32);
        EXPECT_NE(drawn.seen[word] >> drawn.ids[row] % 32 & 1, 0) << row;
    }
    EXPECT_GT(penalised, 0);
}

TEST_F(SampleTokensOnHost, RowsWithoutADrawStayEmpty) {
    EXPECT_EQ(draw_all(*ops_, {}, {{.index = -1}, {.index = 3}}).ids[0], -1);
}

TEST_F(SampleTokensOnHost, RefusesLogitsThatAreNoNumbers) {
    EXPECT_THROW(draw_all(*ops_, {}, {{}}, [](Values& x) { x[7] = std::nan(""); }), Error);
}

}  // namespace
}  // namespace perigee::testing
