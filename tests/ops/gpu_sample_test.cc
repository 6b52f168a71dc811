// The GPU draws the same tokens as the host. Their fp32 sums differ in the last bits, so about one draw in a million
// may give the neighbouring token.
#include "ops/sample_case.h"

namespace perigee::testing {
namespace {

using GpuSample = GpuTest;

TEST_F(GpuSample, DrawsTheHostsTokens) {
    std::unique_ptr<Device> const device = make_host_device();
    auto const f32 = make_host_ops(*device, 2);
    int64_t draws = 0, others = 0, left = 0;
    for (bool const seen : {false, true})
        for (auto const& [width, allowed] : {std::pair<int64_t, int64_t>{1, 1}, {40, 33}, {1000, 1000}, {9000, 8999}})
            for (double const spread : {0.0, 0.3, 3.0, 30.0})
                for (int64_t index = 0; index < 2; ++index) {
                    SampleCase const c{
                        .width = width, .allowed = allowed, .spread = spread, .seen = seen, .index = index};
                    auto const rules = draw_rules(index);
                    Drawn const found = draw_all(gpu(), c, rules), want = draw_all(*f32, c, rules);
                    for (size_t row = 0; row < rules.size(); ++row) {
                        if (found.ids[row] < 0) {
                            ++left;
                            EXPECT_GT(allowed, 4096) << "few tokens left to the host";
                            continue;
                        }
                        ++draws, others += found.ids[row] != want.ids[row];
                    }
                    if (left == 0 && others == 0) {
                        EXPECT_EQ(found.seen, want.seen);
                    }
                }
    EXPECT_LE(others, 1) << "of " << draws;
    EXPECT_GT(draws, 8 * left) << left << " left to the host";
}

TEST_F(GpuSample, TakesAWholeVocabulary) {
    std::unique_ptr<Device> const device = make_host_device();
    auto const f32 = make_host_ops(*device, 2);
    SampleCase const c{.width = 128256, .allowed = 128000, .spread = 4};
    std::vector<DrawRule> rules;
    for (uint64_t seed = 0; seed < 24; ++seed)
        rules.push_back({.temperature = seed % 4 == 0 ? 0 : 0.8,
                         .top_p = seed % 2 == 0 ? 0.95 : 1,
                         .top_k = seed % 3 == 0 ? 50 : 0,
                         .random = Philox(seed, Purpose::generate),
                         .index = static_cast<int64_t>(seed)});
    EXPECT_EQ(draw_all(gpu(), c, rules).ids, draw_all(*f32, c, rules).ids);
}

TEST_F(GpuSample, FollowsTheDistribution) {
    SampleCase const c{.width = 4, .allowed = 4};
    int counts[4] = {};
    for (int64_t index = 0; index < 40; ++index) {
        std::vector<DrawRule> rules;
        for (uint64_t seed = 0; seed < 500; ++seed)
            rules.push_back({.random = Philox(seed, Purpose::generate), .index = index});
        auto const set = [](Values& x) {
            for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i % 4) / 2;
        };
        for (int32_t const id : draw_all(gpu(), c, rules, set).ids) ++counts[id];
    }
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += std::exp(i / 2.0);
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(counts[i], 20000 * std::exp(i / 2.0) / sum, 350) << i;
}

TEST_F(GpuSample, ARowDependsOnItsRuleAndLogitsAlone) {
    SampleCase const c{.width = 500, .allowed = 500};
    auto rules = draw_rules(5);
    auto const all = draw_all(gpu(), c, rules).ids;
    EXPECT_EQ(draw_all(gpu(), c, rules).ids, all);
    rules.resize(7);
    auto const few = draw_all(gpu(), c, rules).ids;
    EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin()));
}

TEST_F(GpuSample, LeavesToTheHostWhatItCannotDraw) {
    SampleCase const c{.width = 20000, .allowed = 20000, .spread = 0};
    std::vector<DrawRule> const rules = {{}, {.temperature = 0}, {.index = -1}, {.top_k = 3}};
    auto const equal = draw_all(gpu(), c, rules).ids;
    EXPECT_EQ(equal, (std::vector<int32_t>{-1, 0, -1, -1}));
    for (double const bad : {std::nan(""), double(INFINITY)})
        EXPECT_EQ(draw_all(gpu(), c, {{}, {.temperature = 0}}, [&](Values& x) { x[777] = x[20777] = bad; }).ids,
                  (std::vector<int32_t>{-1, -1}));
    // The next call finds clean counters.
    EXPECT_EQ(draw_all(gpu(), {.width = 20, .allowed = 20, .spread = 0}, {{.temperature = 0}}).ids[0], 0);
    std::vector<DrawRule> const greedy(3, {.temperature = 0});
    auto const highest = [](Values& x) { x[5] = x[9] = 1, x[20 + 19] = 1, x[40] = 1; };
    EXPECT_EQ(draw_all(gpu(), {.width = 20, .allowed = 20, .spread = 0}, greedy, highest).ids,
              (std::vector<int32_t>{5, 19, 0}));
}

}  // namespace
}  // namespace perigee::testing
