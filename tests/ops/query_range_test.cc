// Attention for a range of the queries of a pack, as context parallelism asks for it: any split of the queries gives
// what the whole call gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>

#include "ops/attention_case.h"

namespace perigee {
namespace {

using namespace testing;
using ::testing::TestWithParam;

struct RangeCase {
    AttentionCase attention;
    Selection selection;
    std::vector<int64_t> borders;  ///< of the ranges of queries
};
void PrintTo(RangeCase const& c, std::ostream* out) {
    *out << fmt::format("{}, {} heads on {}, size {}, ranges from {}", is_full(c.selection) ? "full" : "sparse",
                        c.attention.heads, c.attention.kv_heads, c.attention.head_dim, fmt::join(c.borders, " "));
}

std::vector<Queries> ranges(std::vector<int64_t> const& borders) {
    std::vector<Queries> result;
    for (size_t i = 0; i + 1 < borders.size(); ++i) result.push_back({borders[i], borders[i + 1]});
    return result;
}

class QueryRanges : public TestWithParam<RangeCase> {
  protected:
    template <class Real>
    void expect_equal_to_the_whole(double tolerance) {
        auto const& [attention, selection, borders] = GetParam();
        ReferenceProblem const p = make_problem(attention);
        HostAttention<Real> host(1);
        std::vector<int32_t> const chosen = host.select(p, selection);
        auto const whole = host.attend(p, selection, chosen);

        auto in_place = HostAttention<Real>::poisoned_result(p), apart = in_place;
        std::vector<double> dk(whole.dk.size()), dv(whole.dv.size());
        std::vector<int32_t> choices;
        bool first = true;
        for (Queries const of : ranges(borders)) {
            std::ranges::copy(host.select(p, selection, of), std::back_inserter(choices));
            host.attend(p, selection, chosen, of, !first, in_place);
            host.attend(p, selection, chosen, of, false, apart);
            for (size_t i = 0; i < dk.size(); ++i) dk[i] += apart.dk[i], dv[i] += apart.dv[i];
            first = false;
        }
        EXPECT_EQ(choices, chosen);
        EXPECT_LT(worst_error(in_place, whole), tolerance);
        EXPECT_LT(std::max(relative_error(dk, whole.dk), relative_error(dv, whole.dv)), tolerance);
        EXPECT_LT(std::max(relative_error(apart.o, whole.o), relative_error(apart.dq, whole.dq)), tolerance);
    }
};

TEST_P(QueryRanges, GiveWhatTheWholeGives) {
    expect_equal_to_the_whole<float>(1e-6);
    expect_equal_to_the_whole<double>(1e-14);
}

std::vector<RangeCase> cases() {
    std::vector<std::vector<int64_t>> const splits = {
        {0, 0, 1, 1, 34, 100, 195, 300, 301, 640, 640}, {0, 160, 320, 480, 640}, {0, 129, 258, 387, 516, 640}};
    std::vector<std::pair<AttentionCase, Selection>> const kinds = {
        {{.cu_seqlens = kRagged, .heads = 4, .kv_heads = 2, .head_dim = 64, .seed = 11}, {}},
        {{.cu_seqlens = kRagged, .heads = 3, .kv_heads = 1, .head_dim = 32, .seed = 12}, {}},
        {{.cu_seqlens = {0, 640}, .heads = 2, .kv_heads = 2, .seed = 13}, {}},
        {{.cu_seqlens = kRagged, .heads = 4, .kv_heads = 2, .head_dim = 64, .seed = 14}, MobaOptions{32, 3}},
        {{.cu_seqlens = kRagged, .heads = 3, .kv_heads = 1, .seed = 19}, NearestBlocks{.block_size = 16, .top_k = 4}},
        {{.cu_seqlens = kRagged, .seed = 21}, SinkNearestBlocks{.block_size = 16, .top_k = 4}},
        {{.cu_seqlens = kRagged, .seed = 20}, RandomBlocks{.block_size = 16, .top_k = 4, .seed = 5, .layer = 2}},
        {{.cu_seqlens = {0, 640}, .heads = 2, .kv_heads = 2, .seed = 15}, MobaOptions{200, 2}},
        {{.cu_seqlens = kRagged, .heads = 3, .kv_heads = 1, .seed = 16}, MobaOptions{.block_size = 7, .top_k = 4}},
        {{.cu_seqlens = kRagged, .seed = 22}, MobaOptions{.block_size = 16, .top_k = 3, .force_first = true}},
        {{.cu_seqlens = kRagged, .seed = 17}, MobaOptions{.block_size = 32, .top_k = 1}},
        {{.cu_seqlens = kRagged, .seed = 18},
         MobaOptions{.block_size = 16, .top_k = 4, .force_previous = true, .selection = MobaSelection::per_group}}};
    std::vector<RangeCase> result;
    for (auto const& [attention, selection] : kinds)
        for (auto const& split : splits) result.push_back({attention, selection, split});
    return result;
}
INSTANTIATE_TEST_SUITE_P(Shapes, QueryRanges, ::testing::ValuesIn(cases()));

TEST(QueryRange, WithoutQueriesLeavesNoGradient) {
    MobaOptions const options{.block_size = 16, .top_k = 3};
    auto const p = make_problem({.cu_seqlens = {0, 30, 100}});
    for (Selection const& selection : {Selection(FullAttention{}), Selection(options)}) {
        HostAttention<float> host;
        std::vector<int32_t> const chosen = host.select(p, selection);
        for (int64_t at : {0, 50, 100}) {
            auto y = HostAttention<float>::poisoned_result(p);
            host.attend(p, selection, chosen, {at, at}, false, y);
            EXPECT_THAT(y.dk, ::testing::Each(0.0f));
            EXPECT_THAT(y.dv, ::testing::Each(0.0f));
            EXPECT_THAT(y.o, ::testing::Each(::testing::IsNan()));
            auto const before = host.attend(p, selection, chosen);
            auto after = before;
            host.attend(p, selection, chosen, {at, at}, true, after);
            EXPECT_EQ(after, before);
        }
    }
}

TEST(QueryRange, MustLieInsideThePack) {
    auto const p = make_problem({.cu_seqlens = {0, 64}, .heads = 1, .kv_heads = 1, .head_dim = 4});
    MobaOptions const moba{.block_size = 16, .top_k = 3};
    std::vector<float> q(64 * 4), lse(64);
    std::vector<int32_t> chosen(64 * 2);
    for (int64_t begin : {-1, 33, 64}) {
        HostAttention<float> host;
        EXPECT_THROW(host.ops().select_blocks({.chosen_THS = {chosen.data(), {32, 1, 2}},
                                               .q_THK = {q.data(), {32, 1, 4}},
                                               .k_TGK = {q.data(), {64, 1, 4}},
                                               .cu_seqlens = p.cu_seqlens,
                                               .selection = moba,
                                               .query_begin = begin}),
                     Error);
        EXPECT_THROW(host.ops().attention_forward({.o_THK = {q.data(), {32, 1, 4}},
                                                   .lse_TH = {lse.data(), {32, 1}},
                                                   .q_THK = {q.data(), {32, 1, 4}},
                                                   .k_TGK = {q.data(), {64, 1, 4}},
                                                   .v_TGK = {q.data(), {64, 1, 4}},
                                                   .cu_seqlens = p.cu_seqlens,
                                                   .scale = 1,
                                                   .query_begin = begin}),
                     Error);
    }
}

}  // namespace
}  // namespace perigee
