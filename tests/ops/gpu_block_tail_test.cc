// What lies between the attention of one block and that of the next, as one kernel: the bits of the operations that it
// is made of.
#include "kernels/common/launch.h"
#include "kernels/decode/block_tail.h"
#include "ops/decode_case.h"
#include "ops/parts.h"

namespace perigee::testing {
namespace {

using GpuBlockTail = GpuTest;

struct TailCase {
    std::vector<int32_t> lengths;  ///< -1: no text
    int64_t width, hidden, inner, head_dim = 64;
    bool next = true, bias = false;
};

/// Everything that `times` operations write: x, y, q, keys and values.
std::vector<Values> results(Ops& ops, TailCase const& c, bool in_parts, int times = 1) {
    DecodeCase const cache{.lengths = c.lengths, .heads = 8, .kv_heads = 2, .head_dim = c.head_dim};
    DecodeLab pages(ops, cache);
    Lab lab(ops);
    auto const random = [&](Shape const& shape, uint64_t seed, double stddev) {
        return lab.compute(shape, random_bf16(shape.size(), seed, stddev));
    };
    int64_t const rows = std::ssize(c.lengths), K = c.head_dim, X = 12 * K;
    double const small = 1 / std::sqrt(static_cast<double>(c.hidden));
    DecodeTail tail{.x_SD = random({rows, c.hidden}, 6, 1),
                    .y_SF = lab.compute({rows, c.inner}),
                    .o_SX = random({rows, c.width}, 7, 1),
                    .o_w_DX = random({c.hidden, c.width}, 5, small),
                    .norm_D = random({c.hidden}, 8, 1),
                    .gate_up_ND = random({2 * c.inner, c.hidden}, 9, small),
                    .down_DF = random({c.hidden, c.inner}, 10, small),
                    .eps = 1e-5};
    TensorView const q = lab.compute({rows, 8, K}), cos = lab.main({rows, K / 2}), sin = lab.main({rows, K / 2});
    std::vector<int32_t> positions;
    std::vector<double> frequencies;
    for (int32_t const length : c.lengths) positions.push_back(std::max(length, 0));
    for (int64_t i = 0; i < K; i += 2) frequencies.push_back(std::pow(1e4, -double(i) / double(K)));
    ops.rope_table({cos, sin, lab.ids(positions), frequencies, 1.25});
    if (c.next)
        tail.next = DecodeQkv{.q_SHK = q,
                              .pages = pages.pages(),
                              .lengths_S = pages.lengths_S,
                              .x_SD = tail.x_SD,
                              .norm_D = random({c.hidden}, 11, 1),
                              .w_XD = random({X, c.hidden}, 12, small),
                              .cos_SR = cos,
                              .sin_SR = sin,
                              .bias_X = c.bias ? random({X}, 13, 1) : TensorView(),
                              .eps = 1e-5};
    for (int i = 0; i < times; ++i) {
        if (in_parts)
            compute_in_parts(tail, [&](auto const& part) { ops.run(part); });
        else
            ops.decode_tail(tail);
    }
    std::vector<Values> found{lab.values(tail.x_SD), lab.values(tail.y_SF), pages.keys(), pages.values()};
    if (c.next) found.push_back(lab.values(q));
    return found;
}

std::vector<int32_t> lengths(int64_t rows) {
    std::vector<int32_t> all;
    for (int64_t row = 0; row < rows; ++row) all.push_back(row % 4 == 2 ? -1 : static_cast<int32_t>(5 * row));
    return all;
}

TEST_F(GpuBlockTail, IsBitwiseTheOperationsThatItIsMadeOf) {
    int one_kernel = 0;
    for (auto const& [width, hidden, inner, dim] : std::vector<std::array<int64_t, 4>>{{512, 512, 512, 64},
                                                                                       {512, 1024, 2560, 96},
                                                                                       {2048, 2048, 8192, 64},
                                                                                       {4096, 4096, 14336, 128},
                                                                                       {576, 576, 1536, 64}})
        for (int64_t const rows : {1, 3, 8, 9, 16})
            for (bool const next : {false, true}) {
                decode::BlockTail const shape{.rows = rows, .width = width, .hidden = hidden, .intermediate = inner};
                one_kernel += decode::takes_block_tail(shape);
                TailCase const c{lengths(rows), width, hidden, inner, dim, next, rows == 3};
                EXPECT_EQ(results(gpu(), c, false), results(gpu(), c, true))
                    << rows << " rows, " << width << ", " << hidden << ", " << inner << (next ? " and next" : "");
            }
    EXPECT_GE(one_kernel, kernels::shared_of_block() > 160 << 10 ? 24 : 2);
}

TEST_F(GpuBlockTail, RepeatsOneAfterTheOther) {
    TailCase const c{.lengths = {40}, .width = 2048, .hidden = 2048, .inner = 8192};
    EXPECT_EQ(results(gpu(), c, false, 40), results(gpu(), c, true, 40));
}

}  // namespace
}  // namespace perigee::testing
