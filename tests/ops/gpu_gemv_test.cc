// Products of a few rows with a weight matrix, as in decoding.
#include "kernels/gemv/gemv.h"
#include "ops/gpu_case.h"
#include "ops/parts.h"

namespace perigee::testing {
namespace {

using GpuGemv = GpuTest;

struct Factors {
    int64_t n, k;
    Values w_NK = random_bf16(n * k, 3), x_RK = random_bf16(17 * k, 4);

    Values first_rows(int64_t rows) const { return {x_RK.begin(), x_RK.begin() + rows * k}; }
};

Values product(Ops& ops, Factors const& f, int64_t rows, Values const& before = {}) {
    Lab lab(ops);
    TensorView const y = before.empty() ? lab.compute({rows, f.n}) : lab.compute({rows, f.n}, before);
    ops.matmul({.c = y,
                .a = lab.compute({rows, f.k}, f.first_rows(rows)),
                .b = lab.compute({f.n, f.k}, f.w_NK),
                .transpose_b = true,
                .accumulate = !before.empty()});
    return lab.values(y);
}

Values expected(Factors const& f, int64_t rows) {
    Values y;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < f.n; ++i) {
            double sum = 0;
            for (int64_t j = 0; j < f.k; ++j)
                sum += f.x_RK[static_cast<size_t>(r * f.k + j)] * f.w_NK[static_cast<size_t>(i * f.k + j)];
            y.push_back(sum);
        }
    return y;
}

/// Full chunks, warps without a chunk, a tile that ends at n, more tiles than SMs, and rows too long for shared memory.
std::vector<std::pair<int64_t, int64_t>> const kShapes = {{8, 32},     {24, 64},   {100, 288},  {1, 96},
                                                          {520, 2048}, {64, 4128}, {4100, 320}, {16, 14336}};

TEST_F(GpuGemv, AgreesWithTheDefinition) {
    for (auto const& [n, k] : kShapes) {
        Factors const f{n, k};
        for (int64_t const rows : {1, 2, 7, 8, 9, 16, 17}) {
            EXPECT_LT(relative_error(product(gpu(), f, rows), expected(f, rows)), 4e-3)
                << rows << " rows, " << n << " x " << k;
        }
    }
}

TEST_F(GpuGemv, ARowDependsOnNoOther) {
    int compared = 0;
    for (auto const& [n, k] : kShapes) {
        Factors const f{n, k};
        // Where x does not fit into shared memory, many rows take another path.
        if (!kernels::takes_gemv({.rows = 16, .n = n, .k = k})) continue;
        ++compared;
        Values const all = product(gpu(), f, 16);
        for (int64_t const rows : {1, 3, 8, 9}) {
            Values const few = product(gpu(), f, rows);
            EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin())) << rows << " rows, " << n << " x " << k;
        }
    }
    EXPECT_GE(compared, 4);
}

TEST_F(GpuGemv, AddsToWhatIsThere) {
    for (auto const& [n, k] : kShapes) {
        Factors const f{n, k};
        for (int64_t const rows : {1, 8, 16, 17}) {
            Values const before = random_bf16(rows * n, 9, 30);
            Values want = expected(f, rows);
            for (size_t i = 0; i < want.size(); ++i) want[i] += before[i];
            EXPECT_LT(relative_error(product(gpu(), f, rows, before), want), 4e-3)
                << rows << " rows, " << n << " x " << k;
        }
    }
}

TEST_F(GpuGemv, RepeatsInEveryBit) {
    Factors const f{4100, 320};
    Values const first = product(gpu(), f, 5);
    for (int again = 0; again < 5; ++again) EXPECT_EQ(product(gpu(), f, 5), first);
}

struct TailShape {
    int64_t rows, width, hidden, inner;
};
/// x and y after so many times DecodeTail, or the operations that it is made of.
std::pair<Values, Values> block_tail(Ops& ops, TailShape const& shape, bool in_parts, int times = 1) {
    auto const& [rows, width, hidden, inner] = shape;
    Lab lab(ops);
    auto const random = [&](Shape const& shape, uint64_t seed) {
        return lab.compute(shape, random_bf16(shape.size(), seed));
    };
    DecodeTail const tail{.x_SD = random({rows, hidden}, 6),
                          .y_SF = lab.compute({rows, inner}),
                          .o_SX = random({rows, width}, 7),
                          .o_w_DX = random({hidden, width}, 5),
                          .norm_D = random({hidden}, 8),
                          .gate_up_ND = random({2 * inner, hidden}, 9),
                          .down_DF = random({hidden, inner}, 10),
                          .eps = 1e-5};
    for (int i = 0; i < times; ++i) {
        if (in_parts)
            compute_in_parts(tail, [&](auto const& part) { ops.run(part); });
        else
            ops.decode_tail(tail);
    }
    return {lab.values(tail.x_SD), lab.values(tail.y_SF)};
}

TEST_F(GpuGemv, TailOfABlockIsBitwiseTheOperationsThatItIsMadeOf) {
    int one_kernel = 0;
    for (auto const& [width, hidden, inner] : std::vector<std::array<int64_t, 3>>{
             {512, 512, 512}, {512, 1024, 2560}, {2048, 2048, 8192}, {4096, 4096, 14336}, {576, 576, 1536}})
        for (int64_t const rows : {1, 3, 8, 9, 16}) {
            kernels::BlockTail const shape{.rows = rows, .width = width, .hidden = hidden, .intermediate = inner};
            one_kernel += kernels::takes_block_tail(shape);
            TailShape const tail{rows, width, hidden, inner};
            EXPECT_EQ(block_tail(gpu(), tail, false), block_tail(gpu(), tail, true))
                << rows << " rows, " << width << ", " << hidden << ", " << inner;
        }
    EXPECT_GE(one_kernel, 12);
}

TEST_F(GpuGemv, TailsOfBlocksOneAfterTheOther) {
    TailShape const tail{1, 2048, 2048, 8192};
    EXPECT_EQ(block_tail(gpu(), tail, false, 40), block_tail(gpu(), tail, true, 40));
}

}  // namespace
}  // namespace perigee::testing
